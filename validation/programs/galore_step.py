"""GaLore's AdamW on the matrices of a Llama in bf16, as its README sets it up.

Told: what ``plain_llama`` is, and the rank.
"""

import sys

import torch
from galore_torch import GaLoreAdamW
from plain_llama import NUM_NUMBERS, train
from transformers import LlamaForCausalLM

rank = int(sys.argv[1 + NUM_NUMBERS])
galore = {"rank": rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}


def optimizer_of(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    """Project the gradients of matrices of blocks, and of nothing else."""
    matrices = [p for name, p in model.named_parameters() if "_proj" in name]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    made: torch.optim.Optimizer = GaLoreAdamW(
        [{"params": others}, {"params": matrices, **galore}], lr=1e-2
    )
    return made


train(sys.argv[1 : 1 + NUM_NUMBERS], optimizer_of)
