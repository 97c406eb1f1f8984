"""The pairs, weights and losses that our DPO is compared with TRL's on. Needs no TRL."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from cases import Case

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.program import Program
from brimful.build.tasks.dpo import first_scores
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from brimful.train.data.batches import START
from brimful.train.data.prepare import prepare
from brimful.train.data.source import plain_source
from brimful.values.job import Adapter, Job, Preference, check_job, plain_job
from brimful.values.strategy import Reference, Strategy

BETA = 0.1
SMOOTHINGS = (0.0, 0.1)
WHOLE: tuple[Reference, ...] = ("resident", "offloaded", "precomputed")
ADAPTED: tuple[Reference, ...] = ("resident", "offloaded", "adapters-off", "precomputed")
RANK, ALPHA = 4, 8.0
PAIRS, HELD_OUT, TOKENIZER = "pairs.jsonl", "heldout.jsonl", "tokenizer"
_NUM_PAIRS, _NUM_WORDS, _LONGEST = 8, 60, 24
_END, _UNKNOWN = "</s>", "<unk>"
_MOVED = 0.05
"""Size of what is added to every parameter that trains, so that the reference is another model."""
_WIDTHS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
    },
    "gpt2": {
        "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1, "attn_pdrop": 0.0,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    },
}  # fmt: skip


class Loss(NamedTuple):
    """A loss, and the global norm of its gradients."""

    loss: float
    norm: float


def cases(*, quick: bool) -> list[Case]:
    """List what is compared: both losses with every place of the reference."""
    every = list(_every())
    return every[:: len(every) // 3] if quick else every


def _every() -> Iterator[Case]:
    for smoothing in SMOOTHINGS:
        for kind in _WIDTHS:
            yield from (_case(_job(kind, smoothing), place) for place in WHOLE)
        adapted = _job("llama", smoothing, adapter=_adapter(), method="lora")
        yield from (_case(adapted, place) for place in ADAPTED)


def _adapter() -> Adapter:
    return Adapter(
        rank=RANK,
        alpha=ALPHA,
        targets=("all-linear",),
        trained_modules=(),
        dtype="same",
        base="same",
        upcast="none",
        input_requires_grad=False,
    )


def _job(kind: str, smoothing: float, **changes: Any) -> Job:
    model = read_config(f"small-{kind}", {"model_type": kind, **_WIDTHS[kind]})
    fields = {
        "task": "dpo",
        "packing": "none",
        "preference": Preference(beta=BETA, label_smoothing=smoothing),
        "seq_len": _LONGEST,
        "global_batch": _NUM_PAIRS,
        "seed": 5,
    }
    return check_job(plain_job(model, **{**fields, **changes}))


def _case(job: Job, reference: Reference) -> Case:
    strategy = Strategy(
        micro_batch=_NUM_PAIRS,
        activation_checkpointing="none",
        loss_chunks=1,
        attention="eager",
        reference=reference,
    )
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def write_data(folder: Path) -> None:
    """Write pairs of answers of many lengths, and the tokenizer of their words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [_UNKNOWN, _END, *(f"w{number}" for number in range(_NUM_WORDS))]
    table = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(table, unk_token=_UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=_END, unk_token=_UNKNOWN, pad_token=_END
    )
    tokenizer.save_pretrained(folder / TOKENIZER)
    for name, first in ((PAIRS, 0), (HELD_OUT, _NUM_PAIRS)):
        rows = [json.dumps(_pair(first + number)) for number in range(_NUM_PAIRS)]
        (folder / name).write_text("\n".join(rows) + "\n", "utf-8")


def _pair(number: int) -> dict[str, str]:
    """Make a question and two answers, of lengths that differ from pair to pair."""
    lengths = (2 + number % 4, 2 + 3 * number % 7, 2 + 5 * number % 6)
    texts, place = [], 7 * number
    for length in lengths:
        texts.append(" ".join(f"w{(place + 11 * n) % _NUM_WORDS}" for n in range(length)))
        place += 13
    question, chosen, rejected = texts
    return {"prompt": f"{question} ", "chosen": chosen, "rejected": rejected}


def our_batch(job: Job, folder: Path) -> Batch:
    """Read all pairs as one batch, by the data path of every run."""
    tokenizer, heldout = str(folder / TOKENIZER), str(folder / HELD_OUT)
    source = plain_source(str(folder / PAIRS), tokenizer=tokenizer, heldout=heldout)
    prepared = prepare(
        source, job, micro_batch=_NUM_PAIRS, cache=folder / "cache", num_eval_tokens=64
    )
    (batch,), _ = prepared.batches.step_at(START)
    return batch


def start(case: Case) -> Program:
    """Build a program; its weights are those of the reference."""
    return build_program(case.job, case.strategy, torch.device("cpu"))


def our_loss(case: Case, folder: Path) -> Loss:
    """Compute our loss and its gradients."""
    program, batch = start(case), our_batch(case.job, folder)
    if case.strategy.reference == "precomputed":
        batch = batch._replace(reference=first_scores(program, batch))
    move(program.model)
    loss = program.root(program, batch, count_targets([batch]))
    loss.backward()
    return Loss(float(loss.detach()), norm_of(program.model))


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped
def move(model: Any) -> None:
    """Move a model away from its reference, by the same draw for every model of its shape."""
    generator = torch.Generator().manual_seed(9)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(_MOVED * torch.randn(parameter.shape, generator=generator))


def norm_of(model: Any) -> float:
    """Return the global norm of a model's gradients, added up in fp64."""
    squares = [
        float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None
    ]
    return float(sum(squares) ** 0.5)


def key_of(case: Case) -> bytes:
    """Return what TRL's loss hangs on: not where our reference is."""
    return msgspec.json.encode(case.job)
