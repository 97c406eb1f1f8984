"""A process of its own for one run of one trainer: ours, or Hugging Face's with PEFT.

Reads a request on stdin, writes what it saw to stdout. Both trainers are watched by the same three
instruments: the clock at the end of every step, the profiler's allocation events, and the largest
resident size that the operating system saw.
"""

import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import msgspec
from cases import Case

from brimful.process.library_output import quiet_libraries
from brimful.values.strategy import num_micro_batches

NUM_WARM_STEPS = 2
"""The first makes the optimizer's state, the second is the first with it."""
NUM_METERED_STEPS = 3
_NEVER = 10**6
_TIMEOUT_S = 900
Trainer = Literal["ours", "hf"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run; a metered run is not timed, as its instrument slows it down."""

    trainer: Trainer
    case: Case
    folder: str
    text: str | None
    metered: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one run was seen to do.

    Attributes:
        steps_s: Seconds from the end of each step to that of the next, the first two left out.
        losses: Of every step.
        norms: Gradient norms before the clip, of every step.
        measured_peak_bytes: Peak of live bytes; 0 where nothing was metered.
        process_bytes: Largest resident size since before the model was made.
        num_threads: That torch used.
    """

    steps_s: tuple[float, ...]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    measured_peak_bytes: int
    process_bytes: int
    num_threads: int

    def tokens_per_s(self, case: Case) -> float:
        """Tokens of a step by the median of its seconds."""
        return case.job.tokens_per_step / statistics.median(self.steps_s)


def ask(request: Request) -> Answer:
    """Run in another process.

    Raises:
        subprocess.CalledProcessError: The run failed; its message is on stderr.
    """
    done = subprocess.run(  # noqa: S603 - our own file
        [sys.executable, str(Path(__file__))],
        input=msgspec.json.encode(request),
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
    )
    # A library may have spoken before: the answer is the last line.
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Answer)


def serve() -> None:
    """Answer the request on stdin."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    with tempfile.TemporaryDirectory() as folder:
        answer = {"ours": _ours, "hf": _theirs}[request.trainer](request, Path(folder))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(answer) + b"\n")


class PeakMeter:
    """Peak of live bytes in the first steps, from the profiler's allocation events.

    Begins with the first step, at what the model holds by then: loaders allocate in threads of
    their own, which the profiler does not see, and what a load takes for a moment is no training.
    """

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self.peak_bytes = 0
        self._held_bytes = 0
        self._profiler: Any = None

    def begin(self, model: Any) -> None:
        """Begin: the model is loaded and no step has begun."""
        import torch

        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in (*model.parameters(), *model.buffers())
        }
        self._held_bytes = sum(storages.values())
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profiler.__enter__()

    def end(self) -> None:
        """End after some steps, and read."""
        from brimful.measure.allocations import collect, lifetimes, live_bytes

        self._profiler.__exit__(None, None, None)
        events = collect(self._profiler.profiler.kineto_results.experimental_event_tree()).events
        live = live_bytes(lifetimes(events), len(events.time_ns))
        self.peak_bytes = self._held_bytes + int(live.max())


class OurMeter:
    """The same instrument as a meter of ``train``: begins at the first forward pass."""

    def __init__(self, instrument: PeakMeter) -> None:
        """Keep the instrument."""
        self._instrument = instrument
        self._stack = contextlib.ExitStack()
        self._has_begun = False

    def start(self) -> None:
        """Wait for the first step."""
        from brimful.build import phases

        self._stack.enter_context(phases.listening(self._listen))

    def stop(self, program: Any) -> None:
        """End."""
        del program
        self._stack.close()
        self._instrument.end()

    def abandon(self) -> None:
        """Stop listening."""
        self._stack.close()

    def _listen(self, _name: str, _begins: bool, program: Any) -> None:  # noqa: FBT001
        if not self._has_begun:
            self._has_begun = True
            self._instrument.begin(program.model)


class Notes:
    """Takes the time at the end of each step, and keeps its numbers."""

    def __init__(self) -> None:
        """No step has ended."""
        self.ends_s: list[float] = []
        self.losses: list[float] = []
        self.norms: list[float] = []

    def step_ended(self) -> None:
        """Take the time."""
        self.ends_s.append(time.perf_counter())

    def answer(self, *, peak_bytes: int) -> Answer:
        """Put together what was seen; the run is over."""
        import torch

        from brimful.train.memory import peak_bytes as largest_bytes

        pairs = zip(self.ends_s[NUM_WARM_STEPS - 1 :], self.ends_s[NUM_WARM_STEPS:], strict=False)
        return Answer(
            steps_s=tuple(end - start for start, end in pairs),
            losses=tuple(self.losses),
            norms=tuple(self.norms),
            measured_peak_bytes=peak_bytes,
            process_bytes=largest_bytes(torch.device("cpu")),
            num_threads=torch.get_num_threads(),
        )


def _ours(request: Request, folder: Path) -> Answer:
    """Run ``train`` as the command line does."""
    from peer_site import token_cache
    from sampler import cluster_of

    from brimful.cost.estimate import estimate_or_none
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.settings import plain_settings
    from brimful.values.plan import PLAN_SCHEMA, Plan

    case, cluster = request.case, cluster_of("cpu")
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=case.job,
        cluster=cluster,
        strategy=case.strategy,
        estimate=estimate_or_none(case.job, cluster, case.strategy),
    )
    settings = plain_settings(
        out=folder / "run",
        data=None if request.text is None else Path(request.text),
        cache=token_cache(),
        checkpoint_every_steps=_NEVER,
        eval_every_steps=_NEVER,
        num_eval_tokens=1,
    )
    notes, meter = Notes(), PeakMeter()
    train(
        plan,
        settings,
        observer=_observer(notes),
        meter=OurMeter(meter) if request.metered else NullMeter(),
    )
    return notes.answer(peak_bytes=meter.peak_bytes)


def _observer(notes: Notes) -> Any:
    from brimful.train.observers import PlainObserver
    from brimful.train.step_report import StepReport

    class Watcher(PlainObserver):
        """The plain observer, into nowhere, that takes notes."""

        def on_step(self, report: StepReport) -> None:
            notes.step_ended()
            row = report.row
            notes.losses.append(float("nan") if row.loss is None else row.loss)
            notes.norms.append(float("nan") if row.grad_norm is None else row.grad_norm)
            super().on_step(report)

    return Watcher(io.StringIO())


def _theirs(request: Request, folder: Path) -> Answer:
    """Run ``transformers.Trainer`` with the same settings; adapters are PEFT's."""
    import torch
    import transformers

    from brimful.train.memory import reset_peak

    notes, meter = Notes(), PeakMeter()
    # The names of some settings change with version 6.
    warnings.simplefilter("ignore", FutureWarning)
    reset_peak(torch.device("cpu"))
    transformers.set_seed(request.case.job.seed)
    trainer = transformers.Trainer(
        model=_their_model(request),
        args=transformers.TrainingArguments(**their_arguments(request.case, folder)),
        train_dataset=_their_rows(request),
        callbacks=[_callback(notes, meter, metered=request.metered)],
    )
    # It prints what it logs.
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return notes.answer(peak_bytes=meter.peak_bytes)


def their_arguments(case: Case, folder: Path) -> dict[str, Any]:
    """Spell a case as ``TrainingArguments``.

    Args:
        case: What is run.
        folder: Where the trainer may write.
    """
    job, strategy = case.job, case.strategy
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": job.num_steps,
        "per_device_train_batch_size": strategy.micro_batch,
        "gradient_accumulation_steps": num_micro_batches(job, strategy),
        "gradient_checkpointing": strategy.activation_checkpointing != "none",
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16": job.precision == "bf16-mixed",
        "optim": "adamw_torch_fused",
        "learning_rate": job.learning_rate,
        "adam_beta1": job.beta1,
        "adam_beta2": job.beta2,
        "adam_epsilon": job.epsilon,
        "weight_decay": job.weight_decay,
        "max_grad_norm": job.clip,
        "lr_scheduler_type": job.schedule,
        "warmup_steps": job.warmup_steps,
        "train_sampling_strategy": "sequential",
        "seed": job.seed,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        # Labels are shifted already, so that the last token of a row has its target as well.
        "remove_unused_columns": False,
    }


def _their_model(request: Request) -> Any:
    import torch
    import transformers
    from peer_site import ADAPTERS

    job = request.case.job
    base_dtype = torch.float32
    if job.adapter is not None and job.adapter.base == "bf16":
        base_dtype = torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job.weights, dtype=base_dtype, attn_implementation=request.case.strategy.attention
    )
    model.config.use_cache = False
    if job.adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, f"{request.folder}/{ADAPTERS}", is_trainable=True)


def _their_rows(request: Request) -> Any:
    import numpy as np
    import torch
    from peer_site import ROWS

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is untyped
        """The rows that we train on, in our order."""

        def __init__(self, path: Path) -> None:
            self.windows = np.load(path)

        def __len__(self) -> int:
            return len(self.windows)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            row = torch.from_numpy(self.windows[index])
            return {"input_ids": row[:-1], "labels": row[:-1], "shift_labels": row[1:]}

    return Rows(Path(request.folder) / ROWS)


def _callback(notes: Notes, meter: PeakMeter, *, metered: bool) -> Any:
    import transformers

    class Watcher(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
        """Takes notes."""

        def on_train_begin(
            self, _args: Any, _state: Any, _control: Any, *, model: Any, **_rest: Any
        ) -> None:
            if metered:
                meter.begin(model)

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_rest: Any) -> None:
            notes.step_ended()
            if metered and state.global_step == NUM_WARM_STEPS:
                meter.end()

        def on_log(
            self, _args: Any, _state: Any, _control: Any, *, logs: dict[str, Any], **_rest: Any
        ) -> None:
            if "loss" in logs:
                notes.losses.append(float(logs["loss"]))
                notes.norms.append(float(logs["grad_norm"]))

    return Watcher()


def describe(case: Case) -> str:
    """Return the peer's settings in words."""
    arguments = their_arguments(case, Path("out"))
    kept = ("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
    return "Trainer " + json.dumps({name: arguments[name] for name in kept})


if __name__ == "__main__":
    quiet_libraries()
    serve()
