"""What of a trained program is handed over: a model, adapters, or adapters merged into a model."""

from pathlib import Path

from brimful.build.adapters import base_dtype
from brimful.build.program import Program
from brimful.files import disk_error
from brimful.train.adapter_export import export_adapters, plain_model
from brimful.train.export import export_model


def hand_over(program: Program, *, tokenizer_path: Path | None, folder: Path, merged: bool) -> None:
    """Write what was trained, all or nothing.

    Args:
        program: Trained.
        tokenizer_path: The ``tokenizer.json`` that its data was written with; None: there is none.
        folder: Where to; replaced if there.
        merged: Whether adapters go into their layers; a job without any is not asked.

    Raises:
        RunError: The disk is full; what was there before is untouched.
    """
    job = program.job
    if job.adapter is None:
        export_model(program.model, tokenizer_path=tokenizer_path, folder=folder)
    elif merged or job.weights is None:  # adapters of random weights mean nothing without them
        plain = plain_model(program.model, dtype=base_dtype(job))
        export_model(plain, tokenizer_path=tokenizer_path, folder=folder)
    else:
        export_adapters(program.model, base=job.weights or "", folder=folder)
        _add_tokenizer(tokenizer_path, folder)


def _add_tokenizer(path: Path | None, folder: Path) -> None:
    """Put the tokenizer beside adapters, as PEFT's users expect it; they load without it too."""
    from transformers import AutoTokenizer

    if path is None or not (path.parent / "tokenizer_config.json").is_file():
        return
    try:
        AutoTokenizer.from_pretrained(path.parent, local_files_only=True).save_pretrained(folder)
    except OSError as error:
        raise disk_error(folder, error) from error
