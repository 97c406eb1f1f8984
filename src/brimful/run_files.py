"""The folder of a run: names of its files, and the rows of its curve and data summary.

Written by the trainer and the command line, read by the report.
"""

import msgspec

PLAN_FILE = "plan.yaml"
SEARCH_FILE = "search.json"
SIMULATION_FILE = "simulation.json"
MEASUREMENT_FILE = "measurement.json"
VERDICT_FILE = "verdict.json"
METRICS_FILE = "metrics.jsonl"
DATA_FILE = "data.json"
COMMANDS_FILE = "commands.txt"
REPORT_FILE = "report.html"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TOKENS = "tokens"
DATA_SCHEMA = "brimful.data/1"


class TrainRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="train",
):
    """One optimizer step.

    Attributes:
        step: From 1.
        loss: Mean over the step's unmasked tokens before its update, in nats.
        learning_rate: Of this step.
        grad_norm: Global norm before clipping.
        tokens_per_s: Tokens of the step divided by ``step_s``.
        step_s: Wall time of the step, its data included.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_s: float
    step_s: float


class EvalRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="eval",
):
    """The loss on held-out text after a step, in nats per token."""

    step: int
    heldout_loss: float


class DataSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was trained on; ``unigram_entropy`` is of the held-out tokens, in nats per token."""

    schema: str
    unigram_entropy: float
    num_train_tokens: int
    num_heldout_tokens: int
    source: str


Row = TrainRow | EvalRow
