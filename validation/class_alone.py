"""A class of transformers by itself: does it run as a strategy has it, with nothing of ours?

Some classes end in an error in some type, or at some lengths, wherever they are trained: their own
table stays in fp32 beside weights in bf16. Such a strategy is nobody's, and is not drawn.

It is run in few blocks: few tokens for real, on the CPU, and all of them on PyTorch's fake tensors,
which are quick and have no values. Where one runs and the other ends, all tokens are run for real.
Which functions autocast runs in fp32 is another list there than on CUDA, so that CUDA's is heeded.
"""

import contextlib
from typing import Any

from brimful.models.generic import auto_class_of
from brimful.pretend.autocast import FP32_CUDA, FP32_OUTPUT_CUDA, LOWER

_AUTO = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
"""By task: what builds its head, where it does not hang on the class."""
_FEW_TOKENS = 32
_FIRST_WORDS = 5
"""Tokens that few classes take for padding or an end."""


def ends_alone(
    model_type: str, fields: dict[str, Any], task: str, precision: str, seq_len: int
) -> str:
    """Run a class forward and back; say what it ends in, empty where it runs.

    Args:
        model_type: As its configuration spells it.
        fields: Of its configuration.
        task: Says which head.
        precision: A recipe in 16 bits, pure or mixed, or fp32.
        seq_len: Tokens of its one sequence.
    """
    of_class = model_type, fields, task, precision
    if seq_len > _FEW_TOKENS:
        told = _ended(*of_class, _FEW_TOKENS, is_fake=False)
        if bool(told) == bool(_ended(*of_class, seq_len, is_fake=True)):
            return told
    return _ended(*of_class, seq_len, is_fake=False)


def _ended(  # noqa: PLR0913 - a class, how it is run, and on what
    model_type: str,
    fields: dict[str, Any],
    task: str,
    precision: str,
    seq_len: int,
    *,
    is_fake: bool,
) -> str:
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode

    is_mixed = precision.endswith("-mixed")
    half = torch.float16 if "fp16" in precision else torch.bfloat16
    dtype = torch.float32 if is_mixed or precision == "fp32" else half
    made = transformers.CONFIG_MAPPING[model_type](**fields)
    auto_class = getattr(transformers, _AUTO.get(task) or auto_class_of(model_type))
    try:
        with FakeTensorMode() if is_fake else contextlib.nullcontext():
            model = auto_class.from_config(made, dtype=dtype).train()
            words = torch.full((1, seq_len), _FIRST_WORDS)
            one = torch.zeros(1, dtype=torch.long)
            labels = one if task in _AUTO and task != "seq2seq" else words
            with _autocast(half) if is_mixed else contextlib.nullcontext():
                loss = model(input_ids=words, labels=labels).loss
            loss.backward()
    except Exception as error:  # noqa: BLE001 - classes end in errors of many kinds
        return f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:200]}"
    return ""


@contextlib.contextmanager
def _autocast(dtype: Any) -> Any:
    """Cast inside the block as CUDA's autocast does, whose lists differ from the CPU's."""
    import torch
    from torch.overrides import TorchFunctionMode

    wide = {name.partition(".")[0] for name in (*FP32_CUDA, *FP32_OUTPUT_CUDA)}

    class AsOnCuda(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "").strip("_")
            if name in wide:
                args = [x.float() if _is_of(x, dtype) else x for x in args]
            with torch.autocast("cpu", dtype, enabled=name in LOWER):
                return func(*args, **(kwargs or {}))

    with AsOnCuda():
        yield


def _is_of(x: Any, dtype: Any) -> bool:
    return getattr(x, "dtype", None) == dtype and hasattr(x, "float")
