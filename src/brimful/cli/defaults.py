"""The user's defaults, in one table; every output echoes them."""

from brimful.models.spec import ModelSpec

GPUS = "local"
PRETEND_GPU = "h100-80gb"
TASK = "causal-lm"
METHOD = "full"
PRECISION = "bf16-mixed"
OPTIMIZER = "adamw"
ATTENTION = "sdpa"
ACTIVATION_CHECKPOINTING = "none"
LOSS_CHUNKS = 1
MICRO_BATCH = 1
NUM_STEPS = 100
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
CLIP = 1.0
SEED = 0
OBJECTIVE = "time"
LONGEST_SEQ_LEN = 4096
"""Without --seq-len: this, or the model's positions where they are fewer."""
WARMUP_SHARE = 0.1
"""Without --warmup-steps: this share of the steps."""


def seq_len(model: ModelSpec) -> int:
    """Return the sequence length of a job that names none."""
    return min(model.max_seq_len, LONGEST_SEQ_LEN)


def warmup_steps(num_steps: int) -> int:
    """Return the warm-up of a job that names none."""
    return int(WARMUP_SHARE * num_steps)
