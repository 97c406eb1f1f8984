"""bitsandbytes' optimizers, 8-bit or paged, on a Llama in bf16.

Told: name of the optimizer, and what ``plain_llama`` is.
"""

import sys

import bitsandbytes
from plain_llama import NUM_NUMBERS, train

kind = getattr(bitsandbytes.optim, sys.argv[1])
train(sys.argv[2 : 2 + NUM_NUMBERS], lambda model: kind(model.parameters(), lr=1e-4))
