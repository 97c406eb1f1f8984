"""Handing the trained model over in the format that everything else reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful.build.model import GIVEN
from brimful.build.user_module import UserModule
from brimful.train.data.tokenizer import END_OF_TEXT, hiding_words, read_tokenizer
from brimful.train.folders import replacing

WEIGHTS = "model.safetensors"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def export_model(
    model: Any,
    *,
    tokenizer_path: Path | None,
    folder: Path,
    state: dict[str, Any] | None = None,
) -> None:
    """Write weights (safetensors), configuration and tokenizer, all or nothing.

    A model of ``transformers`` is loadable by ``from_pretrained`` afterwards; a module of the
    user's is its state under the names it has there, in ``model.safetensors``. What training
    switched off (dropout, the cache of generation) is in the configuration as it was given.

    ``model``: the model, without adapters (``adapter_export`` writes those). ``tokenizer_path``:
    the ``tokenizer.json`` that its data was written with; with a ``tokenizer_config.json`` beside
    it, it is handed on as it is, and else it is one that was trained here, which ends a text with
    ``END_OF_TEXT``. None: there is none. ``folder``: where to; replaced if there. ``state``: the
    whole model's tensors, where the model itself holds shards; None: its own. Raises RunError: the
    disk is full; a model that was there before is untouched.
    """
    with replacing(folder) as temporary, quiet_bars():
        if isinstance(model, UserModule):
            from safetensors.torch import save_model

            save_model(model.model, str(temporary / WEIGHTS))
            return
        tokenizer = _tokenizer(tokenizer_path)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if tokenizer_path is not None and not _is_given(tokenizer_path):
            # Let texts end with our token: the configuration's special ids belong to another
            # tokenizer. An encoder-decoder was trained to begin with the id that its configuration
            # names, and to read its padding, so that both stay; a classifier writes no text.
            configs = [model.config, getattr(model, "generation_config", None)]
            for config in (config for config in configs if config is not None):
                config.bos_token_id, config.eos_token_id = None, tokenizer.eos_token_id
                if not model.config.is_encoder_decoder:
                    config.pad_token_id = None
        with as_given(model.config, getattr(model, GIVEN, {})):
            model.save_pretrained(temporary, state_dict=state)


def _is_given(tokenizer_path: Path) -> bool:
    return (tokenizer_path.parent / _TOKENIZER_CONFIG).is_file()


def _tokenizer(path: Path | None) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if path is None:
        return None
    if _is_given(path):
        return AutoTokenizer.from_pretrained(path.parent, local_files_only=True)
    own = read_tokenizer(path)
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token=END_OF_TEXT, **hiding_words(own))


@contextmanager
def as_given(config: Any, given: dict[str, Any]) -> Iterator[None]:
    """Put fields back as they were before training, while the block lasts."""
    trained = {field: getattr(config, field) for field in given}
    try:
        for field, value in given.items():
            setattr(config, field, value)
        yield
    finally:
        for field, value in trained.items():
            setattr(config, field, value)


@contextmanager
def quiet_bars() -> Iterator[None]:
    """Keep transformers' progress bars off a terminal that shows ours."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
