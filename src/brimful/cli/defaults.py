"""The user's defaults, in one table; every output echoes them."""

from brimful.models.spec import ModelSpec
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.techniques.parallel.stages import Schedule as PipelineSchedule
from brimful.techniques.quantization import Scheme
from brimful.values.job import ALL_LINEAR, Base, LossScale, Method, Optimizer, Precision, Preference
from brimful.values.strategy import Accumulate, Attention, Compile, Engine, Zero

GPUS = "local"
PRETEND_GPU = "h100-80gb"
METHOD = "full"
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
OFFLOAD = "none"
COMPILE: Compile = "none"
FUSED_KERNELS: FusedKernels = "none"
ALLOCATOR = ""
MICRO_BATCH = 1
NUM_STEPS = 100
LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.1
CLIP = 1.0
SEED = 0
OBJECTIVE = "time"
SEARCH_BUDGET_S = 60
"""Seconds of a search that simulates; one by formulas takes less in any case."""
MAX_GPUS, MAX_NODES = 64, 8
"""Eight nodes of eight, which people rent, and of machines with one GPU one; more where a deadline
needs them, up to ``MOST_GPUS``."""
MOST_GPUS = 1024
MARKET = "secure"
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
