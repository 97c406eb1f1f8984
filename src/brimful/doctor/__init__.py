"""The precision doctor: looks at the numbers of a training step and says what is wrong with them.

Owns what is seen (statistics, never tensors), what is wrong, and what to do about it. Works on any
PyTorch model and loop; must not know of data, of folders or of how a run is kept.
"""
