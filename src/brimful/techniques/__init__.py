"""Techniques: switches that a person knows by name. One file each says all that is asked of one.

Nothing here imports torch. What a technique builds stands in ``build``, under the same file name,
and is imported when it is built.
"""
