"""The folder of a run: names of its files, and the rows of its curve and data summary.

Written by the trainer and the command line, read by the report.
"""

import msgspec

from brimful.values.strategy import Strategy

PLAN_FILE = "plan.yaml"
SEARCH_FILE = "search.json"
SIMULATION_FILE = "simulation.json"
MEASUREMENT_FILE = "measurement.json"
VERDICT_FILE = "verdict.json"
METRICS_FILE = "metrics.jsonl"
DATA_FILE = "data.json"
SOURCE_FILE = "source.json"
SETTINGS_FILE = "settings.json"
COMMANDS_FILE = "commands.txt"
LAUNCH_FILE = ".launch"
SHORTAGES = ".out-of-memory"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TOKENS = "tokens"
TENSORBOARD = "tensorboard"
WANDB = "wandb"
DATA_SCHEMA = "brimful.data/1"


class TrainRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="train",
):
    """One optimizer step; what has a default is not in files of earlier versions.

    Attributes:
        step: From 1.
        loss: Mean over the step's unmasked tokens before its update, in nats; None where it was
            not finite and the step was skipped.
        learning_rate: Of this step.
        grad_norm: Global norm before clipping; None as for the loss.
        tokens_per_s: Unmasked tokens of the step divided by ``step_s``.
        step_s: Wall time of the step, its data included.
        num_targets: Unmasked tokens of the step.
        loss_scale: What the loss was multiplied by; None where it is not scaled.
        skipped: Whether the scaled gradients overflowed, so that nothing was updated.
        mfu: Model FLOPs utilization: matrix products of forward and backward, none recomputed,
            against the device's rate; None where either is unknown.
        hfu: Hardware FLOPs utilization: the same with what checkpointing recomputes.
        used_bytes: Memory in use after the step: resident on a CPU, allocated on a GPU; of many
            devices the largest.
        peak_bytes: The largest so far.
        hottest_rank: Process with that peak; None where one trains alone.
        compile_s: Of ``step_s``, what the first update of each shape took, where it is compiled;
            None where nothing was.
        slowest_rank: Process that took longest to the end of its first forward pass; None likewise.
    """

    step: int
    loss: float | None
    learning_rate: float
    grad_norm: float | None
    tokens_per_s: float
    step_s: float
    num_targets: int | None = None
    loss_scale: float | None = None
    skipped: bool = False
    mfu: float | None = None
    hfu: float | None = None
    used_bytes: int | None = None
    peak_bytes: int | None = None
    hottest_rank: int | None = None
    slowest_rank: int | None = None
    compile_s: float | None = None


class LoopRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step, or several between two log lines, of a loop that is not ours.

    Attributes:
        step: The last of them, from 1.
        step_s: Seconds for each, on average; None where no time was taken.
        loss: As the loop itself reported it; None where it reported none.
        learning_rate: Likewise.
        grad_norm: Likewise.
    """

    step: int
    step_s: float | None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None


class EvalRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="eval",
):
    """How the model does on held-out data after a step.

    Attributes:
        step: The step.
        heldout_loss: In nats per unmasked target.
        perplexity: Its exponential; None for what predicts no tokens.
        accuracy: Share of targets predicted right; None where the task has no such thing.
        is_best: Whether no earlier held-out loss was lower.
    """

    step: int
    heldout_loss: float
    perplexity: float | None = None
    accuracy: float | None = None
    is_best: bool = False


class ExpertRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="experts",
):
    """How the routers of a mixture of experts loaded them over the last steps.

    Attributes:
        step: The last of these steps.
        num_steps: How many they are.
        blocks: Places of the blocks with experts among all blocks, from 0.
        load: Tokens that each expert was chosen for, without padding, of all devices and
            micro-batches of these steps: [blocks][experts].
        num_choices: Experts that a token chooses.
        dropped: Tokens that found no place with their expert, by block; empty: none are dropped.
        received: Rows that the experts of each process got in its heaviest forward pass of these
            steps, [processes][blocks][1]; in a pipeline, which holds several at once, in all passes
            of its heaviest step, [processes][blocks][passes]. Empty where
            experts are not parted.
    """

    step: int
    num_steps: int
    blocks: tuple[int, ...]
    load: tuple[tuple[int, ...], ...]
    num_choices: int
    dropped: tuple[int, ...] = ()
    received: tuple[tuple[tuple[int, ...], ...], ...] = ()


class DataSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was trained on.

    Attributes:
        schema: ``DATA_SCHEMA``.
        unigram_entropy: Of the held-out labels, in nats per label; 0 where they are no classes.
        num_train_tokens: Tokens, or samples of a module, of a pass; None: streamed, not counted.
        num_heldout_tokens: Those to judge by.
        source: Where the data comes from, in words.
        num_skipped: Records that were left out.
        num_truncated: Samples of which something was cut away.
    """

    schema: str
    unigram_entropy: float
    num_train_tokens: int | None
    num_heldout_tokens: int
    source: str
    num_skipped: int = 0
    num_truncated: int = 0


class TakeoverRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="takeover",
):
    """That memory ran out, and which strategy took over.

    Attributes:
        step: The step that could not be taken; 0: the program could not be built.
        phase: What it was doing: ``load``, ``state``, ``forward``, ``backward``, ``optimizer`` or
            ``eval``.
        limit_bytes: What tensors were to take at most.
        reason: What was said of it.
        failed: The strategy that needed too much.
        taken: The one that went on.
        in_place: Whether the step was taken again with everything kept; else the run went on from
            its newest checkpoint, or its beginning.
        rank: Which process it was.
        launch: The launch in which it was, where it has a name.
    """

    step: int
    phase: str
    limit_bytes: int
    reason: str
    failed: Strategy
    taken: Strategy
    in_place: bool
    rank: int = 0
    launch: str = ""


class RestartRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="restart",
):
    """That the processes of a run were started again, because one was lost.

    Attributes:
        step: The last step that was done before; 0: none was.
        num_processes: How many there are now.
        restart: How often they were started again in this launch; 0: another machine came or left.
        reason: What a process said of it; empty where none could.
        launch: The launch in which it was, where it has a name.
    """

    step: int
    num_processes: int
    restart: int
    reason: str = ""
    launch: str = ""


class DamagedRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="damaged",
):
    """That a checkpoint was not as it was saved, and the run went on from an older one.

    Attributes:
        step: The step that the damaged one was of.
        taken: The step that the run went on from.
        folder: Where the damaged one is now, in the folder of checkpoints.
        reason: What is wrong with it.
    """

    step: int
    taken: int
    folder: str
    reason: str


Event = TakeoverRow | RestartRow | DamagedRow
"""What happened to a run, and stays in its file whichever steps are repeated."""
EVENTS = (TakeoverRow, RestartRow, DamagedRow)
Row = TrainRow | EvalRow | ExpertRow | TakeoverRow | RestartRow | DamagedRow
