"""What stands for packages of kernels that whole layers are: linear attention, state spaces.

Each follows its package's own Python step by step: what is allocated, how long a name holds it,
and what is saved for backward. A kernel is noted with its FLOPs and the tensors that it passes.
"""
