"""What of a trained program is handed over: a model, adapters, or adapters merged into a model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from brimful.build.adapters import base_dtype
from brimful.build.assemble import build_skeleton
from brimful.build.deepspeed.whole import gathered, is_parted
from brimful.build.own import range_of, whole
from brimful.build.parallel.flat import unwrapped
from brimful.build.program import Program, named_state
from brimful.files.writing import disk_error
from brimful.train.adapter_export import (
    adapter_tensors,
    export_adapters,
    merged_tensors,
    plain_model,
)
from brimful.train.export import export_model
from brimful.train.stages import of_all_stages
from brimful.train.world import is_first, together


def hand_over(program: Program, *, tokenizer_path: Path | None, folder: Path, merged: bool) -> None:
    """Write what was trained, all or nothing; of many processes all call this, one writes.

    ``tokenizer_path``: the ``tokenizer.json`` that its data was written with; None: there is none.
    ``folder``: where to; replaced if there. ``merged``: whether adapters go into their layers; a
    job without any is not asked. Raises RunError: the disk is full; what was there before is
    untouched.
    """
    with unwrapped(program.model):
        _hand_over(program, tokenizer_path=tokenizer_path, folder=folder, merged=merged)


def _hand_over(
    program: Program, *, tokenizer_path: Path | None, folder: Path, merged: bool
) -> None:
    job = program.job
    if job.adapter is None:
        state = _gathered(program)
        with together():
            if is_first():
                model = _whole_model(program)
                export_model(model, tokenizer_path=tokenizer_path, folder=folder, state=state)
    elif merged or job.weights is None:  # adapters of random weights mean nothing without them
        dtype = base_dtype(job)
        keep = is_first() or program.pipeline is not None
        tensors = of_all_stages(program, merged_tensors(program.model, dtype=dtype, keep=keep))
        with together():
            if is_first():
                plain = plain_model(program.model, dtype=dtype, tensors=tensors)
                export_model(plain, tokenizer_path=tokenizer_path, folder=folder)
    else:
        adapters = of_all_stages(program, adapter_tensors(program.model))
        with together():
            if is_first():
                export_adapters(
                    program.model, base=job.weights or "", folder=folder, adapters=adapters
                )
                _add_tokenizer(tokenizer_path, folder)


def _whole_model(program: Program) -> torch.nn.Module:
    """Return the model that weights are written for: of a pipeline one without bytes."""
    if program.pipeline is None:
        return program.model
    return build_skeleton(program.job, program.strategy)


def _gathered(program: Program) -> dict[str, torch.Tensor] | None:
    """Gather a model in pieces on the first process's host, one tensor at a time.

    Returns what ``state_dict`` would hold of the whole model; empty in the other processes; None
    where every process has it whole.
    """
    named = named_state(program)
    if is_parted(named.values()):
        return gathered(program, named, keep=is_first())
    is_sharded = any(isinstance(x, DTensor) or range_of(x) for x in named.values())
    if not is_sharded and program.pipeline is None:
        return None
    keep = is_first() or program.pipeline is not None
    if program.pipeline is not None:
        copies = program.pipeline.row.repeated
        named = {name: tensor for name, tensor in named.items() if tensor not in copies}
    state = of_all_stages(program, _whole_tensors(named, keep=keep))
    return state if is_first() else {}


def _whole_tensors(named: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
    """Return tensors in full on the host, tied ones once; empty ones where nobody keeps them."""
    kept: dict[int, torch.Tensor] = {}
    for tensor in named.values():
        if id(tensor) not in kept:
            full = whole(tensor)
            kept[id(tensor)] = full.cpu() if keep else full.new_empty(0)
    return {name: kept[id(tensor)] for name, tensor in named.items()}


def _add_tokenizer(path: Path | None, folder: Path) -> None:
    """Put the tokenizer beside adapters, as PEFT's users expect it; they load without it too."""
    from transformers import AutoTokenizer

    if path is None or not (path.parent / "tokenizer_config.json").is_file():
        return
    try:
        AutoTokenizer.from_pretrained(path.parent, local_files_only=True).save_pretrained(folder)
    except OSError as error:
        raise disk_error(folder, error) from error
