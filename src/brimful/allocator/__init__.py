"""PyTorch's CUDA caching allocator, replayed: what a program reserves for what it asks for.

``config`` reads its settings, ``state`` has its rules, ``pool`` the values they work on, ``replay``
walks through a program's requests. Needs no torch; both rungs that replay take it.
"""
