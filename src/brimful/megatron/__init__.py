"""What a process of Megatron-LM takes at its peak, by formula: nothing of it has to be installed.

A micro-batch is walked block by block as Megatron-Core and Transformer Engine run it; sizes are
numbers, no tensor is made. ``programs/megatron.py`` runs the program itself.
"""
