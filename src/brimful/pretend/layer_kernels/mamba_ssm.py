"""What stands for mamba-ssm: the functions that classes of transformers ask for.

Followed: mamba-ssm 2.3.2.post1 (``state_chunks.py``, ``selective_scan.py``), and
``mamba_ssm/ops/triton/selective_state_update.py``, which writes one token and has no backward.
"""

from typing import Any

import torch

from brimful.pretend.layer_kernels.base import Launch, Modules, package
from brimful.pretend.layer_kernels.selective_scan import inner_of, selective_scan_of
from brimful.pretend.layer_kernels.state_chunks import chunk_scan_of, split_scan_of

VERSION = "2.3.2.post1"
WORDS = f"mamba-ssm {VERSION}, by what its functions allocate (mamba_ssm/ops)"


def modules(launch: Launch) -> Modules:
    """Return what its modules have."""

    def selective_state_update(
        state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor,  # noqa: N803
        B: torch.Tensor, C: torch.Tensor, D: torch.Tensor | None = None,  # noqa: N803
        z: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False, state_batch_indices: Any = None,  # noqa: ARG001, FBT001, FBT002
    ) -> torch.Tensor:  # fmt: skip
        out = torch.empty_like(x)
        launch("selective_scan_update_kernel", 0, state, x, dt, A, B, C, D, z, dt_bias, out)
        return out

    inner, scan = inner_of(launch), selective_scan_of(launch)
    of_one = {"mamba_inner_fn": inner, "selective_scan_fn": scan}
    of_two = {
        "mamba_chunk_scan_combined": chunk_scan_of(launch),
        "mamba_split_conv1d_scan_combined": split_scan_of(launch),
    }
    update = {"selective_state_update": selective_state_update}
    return {
        "mamba_ssm": of_one,
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.selective_scan_interface": of_one,
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.selective_state_update": update,
        "mamba_ssm.ops.triton.ssd_combined": of_two,
    }


stand_in = package(VERSION, WORDS, modules)
