"""The YAML that ``trl sft --config`` reads: the Trainer's, with model, adapters and rows.

Source: ``trl/trainer/sft_config.py``, ``trainer/model_config.py``, ``trainer/sft_trainer.py`` and
``scripts/utils.py`` of TRL 1.16.0.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.export import hf_trainer
from brimful.export.adapters import (
    attention_lost,
    attention_name,
    half_type,
    model_name,
    refused_job,
    targets,
)
from brimful.export.given import Exported, Given, in_yaml
from brimful.export.lost import BITSANDBYTES, Lost, lost, refuse
from brimful.values.job import Adapter, Job
from brimful.values.plan import Plan

TO = "trl"
_SAID = (
    "model", "task", "method", "adapter", "seq_len", "packing", "attention", "loss_chunks",
)  # fmt: skip
_COLUMNS = 32_768
"""Words whose logits are computed at once, of at most 4,096 tokens: ``kernels/chunked_logprob.py``.
"""
_TASKS = frozenset({"causal-lm", "chat"})
_BUILDERS = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet",
    ".txt": "text", ".arrow": "arrow",
}  # fmt: skip
"""What ``datasets`` reads a file by, by its suffix."""
_PACKED = frozenset({".gz", ".zst", ".xz", ".bz2"})
"""What it unpacks, by the suffix behind that."""


def text(plan: Plan, given: Given) -> Exported:
    """Return the YAML, and what it does not say."""
    use = "started by: trl sft --config THIS_FILE"
    return in_yaml(plan, given, TO, config(plan, given), losses(plan), use=use)


def config(plan: Plan, given: Given) -> dict[str, Any]:
    """Return the YAML's content.

    Raises UnsupportedError: TRL would train something else.
    """
    job = plan.job
    refuse(plan, TO, refused_job(job, _TASKS, "causal-lm or chat"), bases=BITSANDBYTES)
    trainer = hf_trainer.config(plan, given, to=TO, bases=BITSANDBYTES)
    trainer.pop("remove_unused_columns")
    return {
        "model_name_or_path": model_name(plan),
        "dtype": half_type(job),
        "attn_implementation": attention_name(plan.strategy),
        **_data(given.data),
        "max_length": job.seq_len,
        **_rows(job),
        **({} if job.adapter is None else _adapter(job, job.adapter)),
        "gradient_checkpointing": False,
        **trainer,
    }


def _data(data: str) -> dict[str, Any]:
    """Return where the rows are: ``dataset_name`` is a folder or of the hub, a file a mixture's.

    Source: ``get_dataset`` and ``DatasetConfig`` of ``scripts/utils.py``, which hand both on to
    ``datasets.load_dataset``, whose builders these are.
    """
    path = Path(data)
    inner = path.with_suffix("") if path.suffix in _PACKED else path
    builder = _BUILDERS.get(inner.suffix.lower())
    if builder is None or path.is_dir():
        return {"dataset_name": data}
    return {"datasets": [{"path": builder, "data_files": data, "split": "train"}]}


def _rows(job: Job) -> dict[str, Any]:
    """Return how rows are made of texts, and which of their tokens are learnt."""
    packing: dict[str, Any] = {"packing": job.packing != "none"}
    if job.packing != "none":
        packing["packing_strategy"] = "wrapped" if job.packing == "wrapped" else "bfd"
    return packing | ({"assistant_only_loss": True} if job.task == "chat" else {})


def _adapter(job: Job, adapter: Adapter) -> dict[str, Any]:
    content: dict[str, Any] = {
        "use_peft": True,
        "lora_r": adapter.rank,
        "lora_alpha": int(adapter.alpha),
        "lora_dropout": 0.0,
        "lora_target_modules": targets(adapter),
        "use_dora": job.method == "dora",
    }
    if adapter.trained_modules:
        content["lora_modules_to_save"] = list(adapter.trained_modules)
    if adapter.base in {"nf4", "nf4-double"}:
        content["load_in_4bit"] = True
        content["bnb_4bit_quant_type"] = "nf4"
        content["use_bnb_nested_quant"] = adapter.base == "nf4-double"
    if adapter.base == "llm-int8":
        content["load_in_8bit"] = True
    return content


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the YAML does not say, or says in part."""
    return (*hf_trainer.losses(plan, _SAID), *_in_part(plan))


def own_chunks(job: Job) -> int:
    """Return the chunks of a loss of ours that come nearest to TRL's tiles of words."""
    return 1 << max(0, round(math.log2(job.model.vocab_size / _COLUMNS)))


def _in_part(plan: Plan) -> Iterator[Lost]:
    yield from attention_lost(plan)
    is_fused = plan.strategy.fused_kernels == "liger"  # whose loss stands in for its tiles
    if plan.strategy.loss_chunks != (1 if is_fused else own_chunks(plan.job)):
        why = f"logits are computed in tiles of {_COLUMNS:,} words whatever is asked for"
        yield lost(plan, "loss_chunks", why, "memory")
    adapter = plan.job.adapter
    if adapter is None:
        return
    if adapter.base in BITSANDBYTES:
        why = "adapters beside a quantised base are held in bfloat16, after PEFT made them fp32"
        yield lost(plan, "adapter", why, "mathematics")
    elif plan.job.precision in {"bf16", "fp16"}:
        why = "PEFT holds adapters in fp32 beside a base of 16 bits"
        yield lost(plan, "adapter", why, "mathematics")
    if adapter.upcast != "none":
        yield lost(plan, "adapter", "nothing of the base is held in fp32", "memory")
