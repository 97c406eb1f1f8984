"""Liger's fused kernels: which models have them, beside what they run, and how they cut a loss.

Named ``fused_kernels`` and not ``kernels``, which says whose kernels a device has (``cuda`` or
``cpu``), nor ``use_liger_kernel`` as in the Hugging Face Trainer, which is a yes or no where others
may follow (Unsloth's, Apple's cut cross-entropy).

Source: liger-kernel 0.8.5, ``transformers/monkey_patch.py`` (``MODEL_TYPE_TO_APPLY_LIGER_FN``) and
``ops/fused_linear_cross_entropy.py``. A test holds the models to the installed version's list.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from brimful.values.job import FP8, Base, Job, Method, Task

FusedKernels = Literal["none", "liger", "torch"]
"""Whose kernels run norms, gated activations, rotary positions and the loss: PyTorch's own
operations one by one, or Liger's, each of which is one kernel of Triton's. Layers of linear
attention and state spaces run on a GPU what their class asks packages for (causal-conv1d,
flash-linear-attention, mamba-ssm), but with ``torch``, which is the class's own code."""
PACKAGES = {"liger_kernel": "liger-kernel", "triton": "triton"}
"""What has to be installed where they run: modules, and what brings them."""
LIGER_VERSION = "0.8.5"
LIGER_MODELS: frozenset[str] = frozenset({
    "gemma", "gemma2", "gemma3_text", "glm4", "granite", "llama", "ministral", "mistral", "olmo2",
    "olmo3", "phi3", "qwen2", "qwen3", "smollm3",
})  # fmt: skip
"""Types of models of text that Liger patches, each trained beside the plain loop
(``tests/build/liger_interpreted.py``)."""
SCALED_LOGITS: frozenset[str] = frozenset({"granite"})
"""Those of them whose logits are scaled, which Liger's loss cannot do: it stays PyTorch's."""
LIGER_LOSS = "liger_cross_entropy_kernel"
"""The kernel that each chunk of its loss launches once."""
LIGER_FUNCTIONS = tuple(
    f"liger_kernel.ops.{name}"
    for name in ("fused_linear_cross_entropy", "geglu", "rms_norm", "rope", "swiglu")
)
"""Modules that have the autograd functions that launch its kernels."""
LIGER_TASKS: tuple[Task, ...] = ("causal-lm", "chat")
LIGER_METHODS: tuple[Method, ...] = ("full", "lora", "qlora")
LIGER_BASES: tuple[Base, ...] = ("same", "bf16", "fp16", "nf4", "nf4-double")
INTERPRETER = "TRITON_INTERPRET"
"""Set to 1 Triton runs kernels in Python, on any machine: for tests."""


def beside(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what of a job Liger's kernels do not run, and why."""
    model = job.model
    if model.model_type not in LIGER_MODELS:
        why = "because Liger does not patch it, or it was not compared with the plain loop"
        yield f"{model.name} (of type {model.model_type})", why
    adapter = job.adapter
    base = "same" if adapter is None else adapter.base
    asked = {
        f"task={job.task}": job.task not in LIGER_TASKS,
        f"method={job.method}": job.method not in LIGER_METHODS,
        f"base={base}": base not in LIGER_BASES,
        f"precision={job.precision}": job.precision == FP8,
        f"keep_fp32={','.join(job.keep_fp32)}": bool(job.keep_fp32),
        f"router_aux_loss={job.router_aux_loss}": bool(job.router_aux_loss),
        f"router_z_loss={job.router_z_loss}": bool(job.router_z_loss),
    }
    for what, is_asked in asked.items():
        if is_asked:
            yield what, "which was not compared with the plain loop"


class Head(NamedTuple):
    """An output layer whose loss Liger computes in chunks of tokens.

    Attributes:
        rows: Of the vocabulary.
        columns: Of the hidden states.
    """

    rows: int
    columns: int


def fused_head(job: Job, fused: FusedKernels) -> Head | None:
    """Return the output layer that a fused loss works on; None where the loss is PyTorch's."""
    model = job.model
    if fused != "liger" or model.model_type in SCALED_LOGITS:
        return None
    return Head(model.vocab_size, model.hidden_size)


def chunk_tokens(tokens: int, head: Head, *, budget: int = 1) -> int:
    """Return how many tokens' logits Liger's fused loss has at once: a power of two.

    As many as make its logits about as large as the hidden states.

    ``budget``: how many times as large (Liger's ``chunk_mem_const``, which is 1 in training).

    Source: ``fused_linear_cross_entropy_forward``.
    """
    rows = -(-tokens // -(-head.rows // (budget * head.columns)))
    return min(1 << (rows - 1).bit_length(), tokens)


def budget_for(tokens: int, head: Head, *, num_chunks: int) -> int | None:
    """Return the budget under which so many tokens make so many chunks; None: there is none."""
    most = -(-head.rows // head.columns)
    every = (n for n in range(1, most + 1))
    return next(
        (n for n in every if -(-tokens // chunk_tokens(tokens, head, budget=n)) == num_chunks), None
    )
