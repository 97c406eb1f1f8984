"""Handing the trained model over in the format that everything else reads."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful.files import disk_error
from brimful.train.data.tokenizer import END_OF_TEXT, read_tokenizer


def export_model(model: Any, *, tokenizer_path: Path, folder: Path) -> None:
    """Write weights (safetensors), config.json and tokenizer, all or nothing.

    Args:
        model: A ``transformers`` model.
        tokenizer_path: The ``tokenizer.json`` that its data was written with.
        folder: Loadable by ``AutoModelForCausalLM.from_pretrained`` afterwards; replaced if there.

    Raises:
        RunError: The disk is full; a model that was there before is untouched.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=read_tokenizer(tokenizer_path), eos_token=END_OF_TEXT
    )
    # The configuration's special ids belong to another tokenizer: text now ends with ours.
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.pad_token_id = None, None
        config.eos_token_id = tokenizer.eos_token_id
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with _quiet():
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        raise disk_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars off a terminal that shows ours."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
