"""The pretend GPU: a device that does not exist, on which a PyTorch step runs for its memory.

``device`` registers it with PyTorch, ``autocast`` and ``attention`` make it choose what real
kernels would choose, ``tape`` records every allocation and free.
"""
