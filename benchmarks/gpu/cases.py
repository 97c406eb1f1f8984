"""The cases: where memory comes from, spread over models, precisions and strategies."""

from pathlib import Path

from rows import Case

from brimful.job import Job, check_job, plain_job
from brimful.models.config import load_model
from brimful.strategy import Strategy, check_strategy

NUM_METERED_STEPS = 2
NUM_TIMED_STEPS = 5
_MODELS = Path(__file__).parent / "models"


def _case(  # noqa: PLR0913, PLR0917 - a table's columns
    name: str,
    model: str,
    precision: str,
    seq_len: int,
    batches: tuple[int, int],
    checkpointing: str,
    chunks: int,
    attention: str = "sdpa",
) -> Case:
    """``batches`` are global batch and micro-batch, in sequences."""
    return Case(
        name=name,
        model=model,
        precision=precision,  # type: ignore[arg-type]  # checked when a row is read
        seq_len=seq_len,
        global_batch=batches[0],
        micro_batch=batches[1],
        activation_checkpointing=checkpointing,
        loss_chunks=chunks,
        attention=attention,  # type: ignore[arg-type]  # as above
    )


# In order of what one most wants to know, should the time run out.
GPU_CASES = (
    _case("8b-bf16", "llama-3.1-8b", "bf16", 4096, (1, 1), "none", 1),
    _case("1b-mixed", "tinyllama-1.1b", "bf16-mixed", 2048, (8, 8), "none", 1),
    _case("135m-fp32", "smollm2-135m", "fp32", 2048, (4, 4), "none", 1),
    _case("gpt2-mixed", "gpt2", "bf16-mixed", 1024, (16, 16), "none", 1),
    _case("1b-full-chunks", "llama-3.2-1b", "bf16-mixed", 4096, (16, 8), "full", 16),
    _case("1b-fp32-k", "llama-3.2-1b", "fp32", 2048, (4, 4), "full:8", 1),
    _case("1b-eager-accum", "tinyllama-1.1b", "bf16", 2048, (6, 2), "none", 1, "eager"),
    _case("gpt2m-eager-k", "gpt2-medium", "fp32", 1024, (8, 4), "full:12", 1, "eager"),
    _case("gpt2xl-chunks", "gpt2-xl", "bf16", 1024, (8, 8), "none", 8),
    _case("3b-mixed-k", "llama-3.2-3b", "bf16-mixed", 4096, (4, 2), "full:14", 8),
    _case("8b-full-accum", "llama-3.1-8b", "bf16", 4096, (8, 4), "full", 8),
    _case("8b-brim", "llama-3.1-8b", "bf16", 4608, (3, 3), "none", 8),
)
_LLAMA, _GPT2 = str(_MODELS / "tiny-llama.json"), str(_MODELS / "tiny-gpt2.json")
REHEARSAL_CASES = (
    _case("tiny-llama-fp32", _LLAMA, "fp32", 128, (2, 2), "none", 1),
    _case("tiny-llama-mixed-k", _LLAMA, "bf16-mixed", 128, (4, 2), "full:2", 4),
    _case("tiny-gpt2-bf16", _GPT2, "bf16", 128, (2, 2), "full", 1),
    _case("tiny-gpt2-eager", _GPT2, "fp32", 128, (4, 2), "none", 2, "eager"),
)


def job_of(case: Case) -> Job:
    """Spell a case's job in full."""
    return check_job(
        plain_job(
            load_model(case.model),
            precision=case.precision,
            seq_len=case.seq_len,
            global_batch=case.global_batch,
            num_steps=NUM_METERED_STEPS + NUM_TIMED_STEPS,
            learning_rate=1e-4,
        )
    )


def strategy_of(case: Case) -> Strategy:
    """Spell a case's strategy in full."""
    strategy = Strategy(
        micro_batch=case.micro_batch,
        activation_checkpointing=case.activation_checkpointing,
        loss_chunks=case.loss_chunks,
        attention=case.attention,
    )
    return check_strategy(job_of(case), strategy)
