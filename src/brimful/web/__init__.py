"""A page to explore with: ``brimful web``. One process serves, others of its own answer.

``state`` is what the page asks, ``app`` and ``pool`` serve it and import nothing that computes;
``worker`` answers in a process of its own, by the functions of the command line.
"""
