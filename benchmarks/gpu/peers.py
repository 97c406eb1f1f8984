"""Other trainers on the same work: Hugging Face's Trainer, with Liger's kernels, TRL's trainer.

One run of one of them, in a process of its own: the same model, rows, type, batch, recomputation
and rule of update, random weights. What is not installed, or cannot be said to it, is a reason.
"""

import statistics
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from cases import NUM_METERED_STEPS, NUM_TIMED_STEPS
from rows import PeerRun

from brimful.errors import RunError
from brimful.values.strategy import num_micro_batches

if TYPE_CHECKING:
    from brimful.values.job import Job
    from brimful.values.strategy import Strategy

PACKAGES = {"hf": "transformers", "hf-liger": "liger-kernel", "trl": "trl"}
"""What each trainer is made of."""
PEER_CASES = frozenset({
    "8b-lora", "135m-fp32", "1b-mixed", "1b-full-chunks", "qwen05b-bf16-mixed", "tiny-llama-fp32",
})  # fmt: skip
"""Cases that the others can be given: full training and LoRA, plain tokens, AdamW."""
_RULES = {"adamw": "adamw_torch_fused"}
_PRECISIONS = ("fp32", "bf16", "bf16-mixed")


def refused(job: "Job", strategy: "Strategy") -> str:
    """Say what of a case the others cannot be told; empty where nothing is."""
    told = (
        (job.optimizer not in _RULES, f"optimizer={job.optimizer}"),
        (job.precision not in _PRECISIONS, f"precision={job.precision}"),
        (job.method not in {"full", "lora"}, f"method={job.method}"),
        (strategy.offload != "none", f"offload={strategy.offload}"),
        (strategy.activation_checkpointing not in {"none", "full"}, "some blocks recomputed"),
    )
    return next((what for is_so, what in told if is_so), "")


def run_peer(name: str, job: "Job", strategy: "Strategy", kernels: str) -> PeerRun:
    """Train with another trainer and read its memory and time.

    Raises:
        RunError: It is not installed, or cannot be told the case.
    """
    package = PACKAGES[name]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise RunError(f"{package} is not installed") from error
    if what := refused(job, strategy):
        raise RunError(f"{name} is not told {what}")
    warnings.simplefilter("ignore", FutureWarning)  # names of settings change with version 6
    watcher = _Watcher(kernels)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(name, job, strategy, (kernels, folder))
        trainer.add_callback(watcher.callback())
        watcher.begin(trainer.model)
        trainer.train()
    allocated, reserved = watcher.peaks
    return PeerRun(
        trainer=name,
        versions=(f"{package} {version}", f"transformers {metadata.version('transformers')}"),
        measured_peak_allocated_bytes=allocated,
        measured_peak_reserved_bytes=reserved,
        measured_step_s=statistics.median(watcher.steps_s[NUM_METERED_STEPS:]),
    )


def _trainer(name: str, job: "Job", strategy: "Strategy", site: tuple[str, str]) -> Any:
    import transformers

    model, rows = _model(job, strategy), _rows(job)
    arguments = _arguments(job, strategy, site) | {"use_liger_kernel": name == "hf-liger"}
    if name != "trl":
        return transformers.Trainer(
            model=model, args=transformers.TrainingArguments(**arguments), train_dataset=rows
        )
    import datasets
    import trl

    ids = [{"input_ids": row["input_ids"].tolist()} for row in rows]
    config = trl.SFTConfig(**arguments, max_length=job.seq_len, dataset_kwargs={
        "skip_prepare_dataset": True,
    })  # fmt: skip
    return trl.SFTTrainer(
        model=model,
        args=config,
        train_dataset=datasets.Dataset.from_list(ids),
        processing_class=_tokenizer(),
    )


def _tokenizer() -> Any:
    """Make a tokenizer for TRL, which wants one; rows are tokens already, and none is padded."""
    import tokenizers
    import transformers

    words = tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>")  # noqa: S106
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        pad_token="<pad>",  # noqa: S106 - a word, no secret
        eos_token="<eos>",  # noqa: S106
    )


def _arguments(job: "Job", strategy: "Strategy", site: tuple[str, str]) -> dict[str, Any]:
    kernels, folder = site
    return {
        "output_dir": folder,
        "use_cpu": kernels != "cuda",
        "max_steps": NUM_METERED_STEPS + NUM_TIMED_STEPS,
        "per_device_train_batch_size": strategy.micro_batch,
        "gradient_accumulation_steps": num_micro_batches(job, strategy),
        "gradient_checkpointing": strategy.activation_checkpointing == "full",
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16": job.precision == "bf16-mixed",
        "optim": _RULES[job.optimizer],
        "learning_rate": job.learning_rate,
        "max_grad_norm": job.clip,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _model(job: "Job", strategy: "Strategy") -> Any:
    """Make the model with random weights, adapters beside it where the job has some."""
    import torch
    import transformers

    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    config = transformers.AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation=strategy.attention
    )
    model.config.use_cache = False
    if job.adapter is None:
        return model
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    return get_peft_model(
        model,
        LoraConfig(
            r=job.adapter.rank, lora_alpha=job.adapter.alpha, target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )  # fmt: skip


def _rows(job: "Job") -> Any:
    """Return random rows of whole sequences, enough for every step."""
    import torch

    generator = torch.Generator().manual_seed(job.seed)
    num = job.global_batch * (NUM_METERED_STEPS + NUM_TIMED_STEPS)
    ids = torch.randint(job.model.vocab_size, (num, job.seq_len), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


class _Watcher:
    """Takes the time of each step, and the peaks of the metered ones."""

    def __init__(self, kernels: str) -> None:
        self._is_cuda = kernels == "cuda"
        self._start_s = 0.0
        self._meter: Any = None
        self.steps_s: list[float] = []
        self.peaks: tuple[int, int | None] = (0, None)

    def begin(self, model: Any) -> None:
        """Begin: the model is made."""
        import torch

        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        sys.path.append(str(Path(machine.ROOT) / "validation"))
        from peer_worker import PeakMeter

        self._meter = PeakMeter()
        self._meter.begin(model)

    def step_began(self) -> None:
        """Take the time."""
        self._start_s = time.perf_counter()

    def step_ended(self) -> None:
        """Take the time, and the peaks behind the metered steps."""
        import torch

        if self._is_cuda:
            torch.cuda.synchronize()
        self.steps_s.append(time.perf_counter() - self._start_s)
        if len(self.steps_s) != NUM_METERED_STEPS:
            return
        if self._is_cuda:
            self.peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            return
        self._meter.end()
        self.peaks = self._meter.peak_bytes, None

    def callback(self) -> Any:
        """Return what the trainer calls."""
        import transformers

        watcher = self

        class Callback(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
            """Hands on."""

            def on_step_begin(self, *_args: Any, **_rest: Any) -> None:
                watcher.step_began()

            def on_step_end(self, *_args: Any, **_rest: Any) -> None:
                watcher.step_ended()

        return Callback()
