"""What stands for the extension of Transformer Engine: functions that allocate what its own do.

Transformer Engine's Python is a wheel of its own without any binary; it runs as it is, and decides
what is saved for backward, which recipe quantises what, and how large cuBLAS's workspace is. What
no machine without CUDA has is ``transformer_engine_torch``, which it calls for every kernel; that
stands here, one file per kind of function.

Followed: Transformer Engine 2.17, ``transformer_engine/pytorch/csrc``. A function that was not read
ends the run with its name.
"""
