"""Loops that are not ours: Hugging Face Trainers and plain loops, watched by one line.

Every loop is small enough for a CPU and has most of its peak in activations. What is compared is
the peak of the metered steps with that of the very same loop on the pretend GPU.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from evidence import RICH_SHARE, Summary, other_bytes, relative, spread_of
from progress import shown
from site_rows import WatchedRow

from brimful.report.watched_run import WatchedRun

BAR = 0.01
_TOKENS = 2000
_SMALL = {"vocab_size": _TOKENS, "hidden_size": 128, "num_hidden_layers": 3}


class Watched(NamedTuple):
    """A loop.

    Attributes:
        name: What is trained.
        model: Makes it.
        settings: Of ``TrainingArguments``.
        lengths: Of the sentences, in tokens.
    """

    name: str
    model: Callable[[], Any]
    settings: Mapping[str, Any] = MappingProxyType({})
    lengths: tuple[int, ...] = (160,) * 32


def llama() -> Any:
    """Make a decoder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 344}
    return LlamaForCausalLM(LlamaConfig(**_SMALL, **heads, use_cache=False))


def lora() -> Any:
    """Make one whose adapters train."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=8, target_modules="all-linear"))


def gpt2() -> Any:
    """Make one with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(vocab_size=_TOKENS, **shape))


def qwen3_moe() -> Any:
    """Make a mixture of experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SMALL, **heads, **experts, use_cache=False))


def t5() -> Any:
    """Make an encoder with a decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 128, "d_ff": 256, "d_kv": 32, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=_TOKENS, **shape, decoder_start_token_id=0, use_cache=False)
    return T5ForConditionalGeneration(config)


def bert() -> Any:
    """Make a classifier."""
    from transformers import BertConfig, BertForSequenceClassification

    heads = {"num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": 256}
    return BertForSequenceClassification(BertConfig(**_SMALL, **heads))


RAGGED = (60, 160, 100, 7, 150, 33, 120, 90) * 4
CASES = (
    Watched("llama", llama),
    Watched("llama", llama, {"bf16": True, "gradient_accumulation_steps": 2}),
    Watched("llama", llama, {"optim": "adafactor", "max_grad_norm": 0.0}),
    Watched("llama", llama, {"optim": "adamw_torch", "label_smoothing_factor": 0.1}),
    Watched("llama", llama, {"optim": "sgd", "gradient_accumulation_steps": 3}, RAGGED),
    Watched("llama, checkpointed", llama, {"checkpointing": True}),
    Watched("llama, LoRA", lora, {"bf16": True}),
    Watched("llama, LoRA, checkpointed", lora, {"checkpointing": True}, RAGGED),
    Watched("gpt2, dropout", gpt2),
    Watched("qwen3-moe", qwen3_moe, {}, RAGGED),
    Watched("t5", t5, {"bf16": True}),
    Watched("bert, dropout", bert, {}, RAGGED),
)


def run(*, seed: int, quick: bool) -> tuple[list[WatchedRow], Summary]:
    """Watch every loop; nothing is drawn."""
    del seed
    cases = CASES[:2] if quick else CASES
    rows = [watch(case) for case in shown("watched loops", cases)]
    return rows, summarize(rows)


def watch(case: Watched) -> WatchedRow:
    """Train a few steps with the callback, which is the one line that is added."""
    from transformers import Trainer, TrainingArguments, set_seed

    from brimful.watch import MemoryCallback

    callback = MemoryCallback()
    set_seed(0)
    model = case.model()
    settings = dict(case.settings)
    if settings.pop("checkpointing", False):
        _checkpoint(model)
        model.enable_input_require_grads()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=3, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            **settings,
        )  # fmt: skip
        Trainer(
            model=model,
            args=arguments,
            train_dataset=_sentences(case),
            data_collator=_padded,
            callbacks=[callback],
        ).train()
        assert callback.report is not None
        assert (Path(folder) / "brimful" / "watched.json").is_file()
    return _row(case, callback.run)


def _checkpoint(model: Any) -> None:
    """Switch checkpointing on, by its name of transformers 5.23 or that of those before."""
    old = "gradient_checkpointing_enable"
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
    enable({"use_reentrant": False})


def _row(case: Watched, run: WatchedRun) -> WatchedRow:
    if run.simulation is None:
        raise RuntimeError(f"{case.name} was not simulated: {run.not_simulated}")
    simulated = run.simulation.simulated_peak_allocated_bytes
    measured = run.measurement.measured_peak_allocated_bytes
    estimate = run.estimate
    return WatchedRow(
        name=case.name,
        loop="transformers.Trainer",
        settings=settings_of(case),
        simulated_peak_allocated_bytes=simulated,
        measured_peak_allocated_bytes=measured,
        predicted_peak_allocated_bytes=estimate and estimate.predicted_peak_allocated_bytes,
        other_share=other_bytes(run.simulation.items) / simulated,
        peak_error=relative(simulated, measured),
    )


def settings_of(case: Watched) -> str:
    """Spell what a Trainer was told."""
    return ", ".join(f"{name}={value}" for name, value in case.settings.items())


def _sentences(case: Watched) -> list[dict[str, Any]]:
    import torch

    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, _TOKENS, (length,), generator=draw) for length in case.lengths]
    is_class = case.name.startswith("bert")
    return [{"input_ids": ids, "labels": 1 if is_class else ids} for ids in texts]


def _padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Lay sentences side by side, masked where they end."""
    from torch.nn.utils.rnn import pad_sequence

    ids = [sample["input_ids"] for sample in samples]
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([row.new_ones(len(row)) for row in ids], batch_first=True),
    }
    labels = [sample["labels"] for sample in samples]
    if isinstance(labels[0], int):
        return {**batch, "labels": ids[0].new_tensor(labels)}
    return {**batch, "labels": pad_sequence(labels, batch_first=True, padding_value=-100)}


def summarize(rows: list[WatchedRow]) -> Summary:
    """Sum up, and say which loops miss the bar."""
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=sum(row.other_share > RICH_SHARE for row in rows),
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(f"each peak within {BAR:.0%} of the same loop on the pretend GPU",),
        missed=tuple(
            f"{row.peak_error:+.2%}: {row.name} {row.settings}"
            for row in rows
            if abs(row.peak_error) > BAR
        ),
    )
