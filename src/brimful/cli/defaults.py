"""The user's defaults, in one table; every output echoes them."""

from brimful.models.spec import ModelSpec
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.techniques.parallel.stages import Schedule as PipelineSchedule
from brimful.techniques.quantization import GROUP_SIZE, Scheme
from brimful.values.job import (
    ALL_LINEAR,
    Base,
    Dropout,
    LossScale,
    Method,
    Optimizer,
    Precision,
    Preference,
)
from brimful.values.strategy import DEFAULT_FSDP, Accumulate, Attention, Compile, Engine, Zero

GPUS = "local"
PRETEND_GPU = "h100-80gb"
METHOD: Method = "full"
QAT_SCHEME: Scheme = "int4"
PRECISION: Precision = "bf16-mixed"
PRECISIONS: tuple[Precision, ...] = (PRECISION, "fp16-mixed", "fp32")
"""What stands in for the default where a GPU has no units for it: the first that it has."""
INFERENCE = "bf16"
"""How weights are held that are loaded to write text."""
ATTENTIONS: tuple[Attention, ...] = ("sdpa", "eager")
"""Likewise, where a model's code or the device takes no fused kernel."""
ZEROS: tuple[Zero, ...] = (3, 1, 0)
"""Likewise on several devices, where what is trained cannot be sharded so."""
ZEROS_ALONE: tuple[Zero, ...] = (0, 1)
"""Likewise on one, where the engine knows nothing else."""
OPTIMIZER = DEFAULT
ACTIVATION_CHECKPOINTING = "none"
LOSS_CHUNKS = 1
ACCUMULATE: Accumulate = "reduce-each"
PP_SCHEDULE: PipelineSchedule = "1f1b"
ENGINE: Engine = "torch"
ENGINE_SETTINGS = ""
OFFLOAD = "none"
COMPILE: Compile = "none"
FSDP = DEFAULT_FSDP
FUSED_KERNELS: FusedKernels = "none"
ALLOCATOR = ""
MICRO_BATCH = 1
NUM_STEPS = 100
NUM_EPOCHS = 1
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
CLIP = 1.0
SEED = 0
DROPOUT: Dropout = "off"
OBJECTIVE = "time"
SEARCH_BUDGET_S = 60
"""Seconds of a search that simulates; one by formulas takes less in any case."""
MAX_GPUS, MAX_NODES = 64, 8
"""Eight nodes of eight, which people rent, and of machines with one GPU one; more where a deadline
needs them, up to ``MOST_GPUS``."""
MOST_GPUS = 1024
MARKET = "secure"
ROWS_EACH = 8
"""Of a global batch that a search divides, for each device: ``per_device_train_batch_size`` of
transformers' Trainer, where nobody says another."""
MOST_ROWS = 64
"""Of such a batch in all, where that is a row for each device or more."""
SHOP_TOKENS = 10**9
"""Of a run of which nobody says how long it is: which GPU it needs hangs on that little."""
SHOP_GLOBAL_BATCH = 256
"""Where nobody says how many samples a step sees, and the devices that share them are what is asked
for: enough for hundreds of them."""
LONGEST_SEQ_LEN = 4096
"""Without --seq-len: this, or the model's positions where they are fewer."""
BETAS = (0.9, 0.95)
"""As in Llama's training; Touvron et al. 2023, arXiv:2302.13971, section 2.2."""
MOMENTUM = 0.9
EPSILON = 1e-8
FP16_EPSILON = 1e-4
"""In fp16 an epsilon of 1e-8 is 0 and the update divides by it; measured: NaN at once."""
SCHEDULE = "cosine"
LOSS_SCALE = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
"""The defaults of ``torch.amp.GradScaler``."""
LORA_RANK = 16
LORA_ALPHA_PER_RANK = 2.0
LORA_TARGETS = (ALL_LINEAR,)
LORA_BASE: dict[Precision, Base] = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}
"""How a frozen base is held where the recipe's own type is fp32; any other recipe: ``same``."""
QLORA_BASE: Base = "nf4-double"
"""As in the paper: Dettmers et al. 2023, arXiv:2305.14314, section 3."""
PREFERENCE = Preference(beta=0.1, label_smoothing=0.0)
"""As in TRL; beta as in the paper: Rafailov et al. 2023, arXiv:2305.18290, section 6."""
WARMUP_SHARE = 0.1
"""Without --warmup-steps: this share of the steps."""


def seq_len(model: ModelSpec) -> int:
    """Return the sequence length of a job that names none."""
    return min(model.max_seq_len, LONGEST_SEQ_LEN)


def rows_each(num_devices: int) -> int:
    """Return how many rows each device has of a batch that nobody names, and a search divides."""
    most = max(1, min(ROWS_EACH, MOST_ROWS // num_devices))
    return int(2 ** (most.bit_length() - 1))


def warmup_steps(num_steps: int) -> int:
    """Return the warm-up of a job that names none."""
    return int(WARMUP_SHARE * num_steps)


def base(method: Method, precision: Precision) -> Base:
    """Return how the frozen weights of a job that does not say are held."""
    return QLORA_BASE if method == "qlora" else LORA_BASE.get(precision, "same")


def beta1(optimizer: Optimizer) -> float:
    """Return the first decay rate, or the momentum, of a job that names none."""
    return MOMENTUM if OPTIMIZERS[optimizer].is_momentum else BETAS[0]


def epsilon(precision: Precision) -> float:
    """Return the epsilon of a job that names none."""
    return FP16_EPSILON if precision == "fp16" else EPSILON


WITHOUT: dict[str, str] = {
    "weights": "default: random",
    "task": "default what the model is made for",
    "method": f"default {METHOD}",
    "precision": f"default {PRECISION}, or {' or '.join(PRECISIONS[1:])} on older GPUs",
    "optimizer": f"default {OPTIMIZER}",
    "schedule": f"default {SCHEDULE}",
    "packing": "default: wrapped text, one row per chat or labelled sample",
    "num_labels": "default: its own",
    "seq_len": f"default: what the model covers, at most {LONGEST_SEQ_LEN}",
    "global_batch": f"default: one micro-batch; of plan {ROWS_EACH} rows a GPU, {MOST_ROWS} in all",
    "steps": f"default {NUM_STEPS}",
    "epochs": f"default {NUM_EPOCHS}",
    "learning_rate": f"default {LEARNING_RATE:g}",
    "warmup_steps": f"default {WARMUP_SHARE:g} of the steps",
    "weight_decay": f"default {WEIGHT_DECAY:g}",
    "beta1": f"default {BETAS[0]:g}",
    "beta2": f"default {BETAS[1]:g}",
    "epsilon": f"default {EPSILON:g}, {FP16_EPSILON:g} in pure fp16",
    "clip": f"default {CLIP:g}",
    "seed": f"default {SEED}",
    "dropout": f"default {DROPOUT}",
    "dpo_beta": f"default {PREFERENCE.beta:g}",
    "label_smoothing": f"default {PREFERENCE.label_smoothing:g}",
    "lora_rank": f"default {LORA_RANK}",
    "lora_alpha": f"default {LORA_ALPHA_PER_RANK:g} x rank",
    "lora_targets": f"default {','.join(LORA_TARGETS)}",
    "adapter_dtype": "default same",
    "base": f"default: the recipe's half precision, {QLORA_BASE} for qlora",
    "upcast": "default none",
    "initial_scale": f"default {LOSS_SCALE.initial_scale:g}",
    "growth_factor": f"default {LOSS_SCALE.growth_factor:g}",
    "backoff_factor": f"default {LOSS_SCALE.backoff_factor:g}",
    "growth_interval": f"default {LOSS_SCALE.growth_interval}",
    "qat_scheme": f"default {QAT_SCHEME}",
    "qat_group_size": f"default {GROUP_SIZE}",
    "router_aux_loss": "default 0",
    "router_z_loss": "default 0",
    "micro_batch": f"default {MICRO_BATCH}",
    "activation_checkpointing": f"default {ACTIVATION_CHECKPOINTING}",
    "loss_chunks": f"default {LOSS_CHUNKS}",
    "attention": f"default {', or '.join(ATTENTIONS)} where a model has no other",
    "zero": f"default {ZEROS[0]} on several devices",
    "dp_replicate": "default 1, all devices where --zero is 0",
    "dp_shard": "default: the devices of a group",
    "tp": "default 1",
    "ep": "default 1",
    "pp": "default 1",
    "pp_schedule": f"default {PP_SCHEDULE}",
    "stages_per_device": "default 1, or what --pp-schedule needs",
    "stage_blocks": "default: as even as can be, the head being work too",
    "accumulate": f"default {ACCUMULATE}",
    "reference": "default adapters-off where there are adapters, else resident",
    "engine": f"default {ENGINE}",
    "engine_settings": "default: as export --to deepspeed writes them",
    "offload": f"default {OFFLOAD}",
    "compile": f"default {COMPILE}",
    "fsdp": f"default {FSDP}",
    "fused_kernels": f"default {FUSED_KERNELS}",
    "allocator": "default PyTorch's own",
}
"""What the help of a flag says of leaving it out, by what argparse calls it."""


def searched(name: str) -> str:
    """Return what the help of a flag that is searched for says of leaving it out."""
    where = ", where Liger is installed" if name == "fused_kernels" else ""
    return f"searched for without it{where}"
