"""What the user wants to train. Changing a Job changes the mathematics; nothing else may."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.models.mixtures import GROUPED
from brimful.models.spec import ModelSpec
from brimful.techniques.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from brimful.techniques.optimizers import OPTIMIZERS, rounded_of, whole_of
from brimful.techniques.quantization import Quantization, check_quantization
from brimful.text.escaping import Line
from brimful.values.flag import Flag

Task = Literal[
    "causal-lm", "chat", "dpo", "sequence-classification", "masked-lm", "seq2seq", "module"
]
OVER_TOKENS: frozenset[Task] = frozenset({"causal-lm", "chat", "dpo", "masked-lm", "seq2seq"})
"""Tasks whose loss is summed over tokens, so that it may be cut into chunks of them."""
Method = Literal["full", "lora", "dora", "qlora", "qat"]
Precision = Literal[
    "fp32", "tf32", "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master", "fp8"
]
if TYPE_CHECKING:
    Optimizer = str
else:
    Optimizer = Literal[tuple(OPTIMIZERS)]
"""The name of a record of ``techniques.optimizers``."""
Schedule = Literal["cosine", "linear", "constant"]
Packing = Literal["wrapped", "none", "documents"]
Base = Literal["same", "bf16", "fp16", "nf4", "nf4-double", "int8", "llm-int8"]
Upcast = Literal["none", "norms", "all"]
Dropout = Literal["off", "model"]

FP8: Precision = "fp8"
QAT: Method = "qat"
"""Quantisation-aware training: every parameter trains, linear layers compute with rounded ones."""
WHOLE: frozenset[Method] = frozenset({"full", QAT})
"""Methods that train every parameter."""
SCALED: frozenset[Precision] = frozenset({"fp16-mixed", "fp16-master"})
"""Recipes whose loss is scaled, so that small gradients do not vanish in fp16."""
IN_FP32: frozenset[Precision] = frozenset({"fp32", "tf32"})
"""Recipes that hold and compute everything in fp32."""
NARROW: frozenset[Precision] = frozenset({"bf16", "fp16"})
"""Recipes that hold and compute everything in 16 bits."""
QUANTIZED: frozenset[Base] = frozenset({"nf4", "nf4-double", "int8", "llm-int8"})
"""Bases that are held in fewer bits than any floating-point type that trains."""
FOUR_BITS: frozenset[Base] = frozenset({"nf4", "nf4-double"})
"""Of those in 4 bits, which DoRA's magnitudes go beside too: PEFT dequantises them for it."""


class LossScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dynamic loss scaling, in the terms of ``torch.amp.GradScaler``.

    Attributes:
        initial_scale: The first factor; a power of two.
        growth_factor: By what it grows after ``growth_interval`` steps without Inf or NaN.
        backoff_factor: By what it shrinks on Inf or NaN, when the step is skipped.
        growth_interval: Steps without Inf or NaN before it grows.
    """

    initial_scale: Annotated[float, Flag("{default}")]
    growth_factor: Annotated[float, Flag("{default}")]
    backoff_factor: Annotated[float, Flag("{default}")]
    growth_interval: Annotated[int, Flag("steps; {default}")]


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters beside a frozen base, in PEFT's terms.

    Attributes:
        rank: Width of the two matrices of each adapter.
        alpha: Their product is scaled by ``alpha / rank``.
        targets: Names of the linear layers that get one; ``all-linear`` is every one but the head.
        trained_modules: Modules that train in full beside the adapters (PEFT's
            ``modules_to_save``), e.g. a classifier's head.
        dtype: Type of the adapters: ``same`` is the recipe's own, ``fp32`` what PEFT makes of half
            precision (``autocast_adapter_dtype``).
        base: How the frozen weights are held: ``same`` is the recipe's own type, ``bf16`` and
            ``fp16`` that type whatever the recipe, the others quantised linear layers.
        upcast: What of the base is held in fp32: nothing, its ``norms``, or ``all`` that is not
            quantised (PEFT's ``prepare_model_for_kbit_training``).
        input_requires_grad: Whether gradients flow back to the output of the embedding, as
            reentrant checkpointing of a frozen base needs; costs the first block's input gradients.
    """

    rank: Annotated[int, Flag("{default}", name="lora-rank")]
    alpha: Annotated[float, Flag("{default}", name="lora-alpha")]
    targets: Annotated[
        tuple[Line, ...], Flag("linear layers, by comma; {default}", name="lora-targets")
    ]
    trained_modules: Annotated[
        tuple[Line, ...], Flag("modules that train in full beside the adapters")
    ]
    dtype: Annotated[Literal["same", "fp32"], Flag("{either}; {default}", name="adapter-dtype")]
    base: Annotated[Base, Flag("how frozen weights are held: {each}; {default}")]
    upcast: Annotated[Upcast, Flag("{either}; {default}")]
    input_requires_grad: Annotated[bool, Flag("as PEFT's switch")]


class Preference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loss over pairs of answers: DPO's (Rafailov et al. 2023, arXiv:2305.18290).

    Attributes:
        beta: How dear it is to leave the reference model; a reward is this times the log of how
            much likelier an answer became.
        label_smoothing: How many pairs are thought to be labelled the wrong way round (Mitchell
            2023, "conservative DPO").
    """

    beta: Annotated[
        float, Flag("how dear it is to leave the reference; {default}", name="dpo-beta")
    ]
    label_smoothing: Annotated[float, Flag("share of wrong labels; {default}")]


Allowed = Literal["batch-statistics"]
"""What only a job's owner may allow."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job.

    Attributes:
        model: What is trained.
        weights: Folder or hub id whose safetensors it starts from; None: random weights.
        task: What the loss is; ``causal-lm`` predicts each next token, ``chat`` the same on the
            assistant's answers only, ``dpo`` prefers one of two answers.
        method: Which parameters are trained; ``full`` trains all, and so does ``qat``, which rounds
            them in each forward pass as they will be once they are quantised.
        adapter: The adapters of ``lora``, ``dora`` and ``qlora``; None for all others.
        precision: The recipe (see ``brimful.cost.recipes``).
        loss_scale: Loss scaling of the recipes in ``SCALED``; None for all others.
        optimizer: The update rule, of ``techniques.optimizers``; which of the next three it reads
            stands in its record.
        beta1: Decay rate of the first moment, or momentum.
        beta2: Decay rate of the second moment.
        epsilon: What is added to the root of the second moment.
        seq_len: Tokens per sequence, at most; images and other samples of ``module`` count 1; a
            pair of ``dpo`` is two sequences.
        packing: How samples become sequences: ``wrapped`` cuts one long text into whole
            sequences, ``none`` gives each sample a padded one, ``documents`` lays several samples
            into one and keeps them from seeing one another.
        global_batch: Sequences per optimizer step, over all devices and micro-batches; of ``dpo``
            pairs of them.
        num_steps: Optimizer steps of the run.
        learning_rate: Peak learning rate, reached after ``warmup_steps``.
        schedule: What follows the warm-up: a ``cosine`` to a tenth, a line to zero, or the peak.
        warmup_steps: Steps of linear warm-up.
        weight_decay: On matrices only; decoupled, but for SGD, where it is added to the gradient.
        clip: Largest global gradient norm; 0 leaves gradients alone.
        seed: Seed of the initial weights and of the data order.
        preference: The loss of task ``dpo``; None for all others.
        keep_fp32: Names of modules that are held and computed in fp32 though the recipe has 16
            bits: last parts of their paths, such as ``norm`` or ``mlp.gate``.
        router_aux_loss: Coefficient of the load-balancing loss of every block with experts; 0: off.
        router_z_loss: Coefficient of the loss on the size of router logits; 0: off.
        allow: What may change what is learnt: ``batch-statistics`` (``exact``).
        quantization: What ``qat`` trains for; None for all other methods.
        dropout: ``off``, or the probabilities of the model's own configuration.
    """

    model: ModelSpec
    weights: Annotated[
        Line | None, Flag("folder or hub id to start from; {default}", metavar="MODEL")
    ]
    task: Annotated[Task, Flag("{either}; {default}")]
    method: Annotated[Method, Flag("{either}; {default}")]
    adapter: Adapter | None
    precision: Annotated[Precision, Flag("{either}; {default}")]
    loss_scale: LossScale | None
    optimizer: Annotated[Optimizer, Flag("{either}; {default}")]
    beta1: Annotated[float, Flag("{moments}, or {momentum} momentum; {default}")]
    beta2: Annotated[float, Flag("{moments}; {default}")]
    epsilon: Annotated[float, Flag("{moments}; {default}")]
    seq_len: Annotated[int, Flag("tokens per sequence, 4k is 4,096; {default}", is_length=True)]
    packing: Annotated[Packing, Flag("{either}; {default}")]
    global_batch: Annotated[int, Flag("sequences per optimizer step; {default}")]
    num_steps: Annotated[int, Flag("optimizer steps; {default}", name="steps")]
    learning_rate: Annotated[float, Flag("at its peak; {default}")]
    schedule: Annotated[Schedule, Flag("{either}; {default}")]
    warmup_steps: Annotated[int, Flag("to the learning rate's peak; {default}", least=0)]
    weight_decay: Annotated[float, Flag("{default}")]
    clip: Annotated[float, Flag("largest gradient norm, 0 is off; {default}")]
    seed: Annotated[int, Flag("of weights and data order; {default}", least=0)]
    preference: Preference | None = None
    keep_fp32: Annotated[
        tuple[Line, ...], Flag("modules in fp32 though the recipe has 16 bits")
    ] = ()
    router_aux_loss: Annotated[float, Flag("coefficient of the load-balancing loss; {default}")] = (
        0.0
    )
    router_z_loss: Annotated[float, Flag("coefficient of the loss on router logits; {default}")] = (
        0.0
    )
    allow: Annotated[
        tuple[Allowed, ...],
        Flag("what may change what is learnt: {each} (of micro-batches, by --router-aux-loss)"),
    ] = ()
    quantization: Quantization | None = None
    dropout: Annotated[
        Dropout, Flag("{either}: of its configuration; {default}", metavar="NAME")
    ] = "off"

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees, padding included."""
        return self.global_batch * self.rows_per_sample * self.seq_len

    @property
    def rows_per_sample(self) -> int:
        """Sequences that one sample is: a pair is two."""
        return 2 if self.task == PREFERENCE else 1


def plain_job(model: ModelSpec, **changes: Any) -> Job:
    """Return the job of training every parameter on plain text in fp32, with changes.

    Args:
        model: What is trained.
        changes: Fields of ``Job`` that differ.
    """
    plain = Job(
        model=model,
        weights=None,
        task="causal-lm",
        method="full",
        adapter=None,
        precision="fp32",
        loss_scale=None,
        optimizer=DEFAULT_OPTIMIZER,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        seq_len=model.max_seq_len,
        packing="wrapped",
        global_batch=1,
        num_steps=1,
        learning_rate=3e-4,
        schedule="cosine",
        warmup_steps=0,
        weight_decay=0.1,
        clip=1.0,
        seed=0,
    )
    return msgspec.structs.replace(plain, **changes)


MAX_COUNT = 10**9
"""Batches, lengths and steps beyond this are typing errors, and overflow no arithmetic below it."""
MAX_SCALE = 2.0**40
"""fp16 ends at 65504, so that no loss can be scaled by as much."""
ALL_LINEAR = "all-linear"
"""The target of adapters beside every linear layer but the head."""
PREFERENCE: Task = "dpo"
"""The task of ``Preference``, whose samples are pairs."""
MASKED: Task = "masked-lm"
"""The task of telling which tokens were hidden, from those on both sides of them."""
MODULE = "module"
"""The ``model_type`` of a model that a factory makes and of which nothing else is known."""
PACKINGS: dict[Task, tuple[Packing, ...]] = {
    "causal-lm": ("wrapped", "none", "documents"),
    "chat": ("none", "documents"),
    "dpo": ("none",),
    "sequence-classification": ("none",),
    "masked-lm": ("wrapped",),
    "seq2seq": ("none",),
    "module": ("none",),
}
"""Packings that make sense for a task; the first is the default."""
NOT_ROUNDED: frozenset[Task] = frozenset({"dpo", "module"})
"""Tasks without ``qat``: a reference that would be rounded or not, and models of unknown layers."""
MOST_SMOOTHING = 0.5
"""The share of wrong labels at which neither answer is preferred."""
MAX_SEED = 2**63 - 1
"""The largest that torch and YAML readers of every language agree on."""


def check_job(job: Job) -> Job:
    """Return the job as it is, or say what is wrong with it.

    Raises UnsupportedError: this version does not train it.
    """
    for field in ("seq_len", "global_batch", "num_steps"):
        value = getattr(job, field)
        if not 1 <= value <= MAX_COUNT:
            raise InputError(f"{field}={value} is out of range; give 1 to {MAX_COUNT}")
    for field in ("learning_rate", "warmup_steps", "weight_decay", "clip"):
        value = getattr(job, field)
        if not 0 <= value <= MAX_COUNT:
            raise InputError(f"{field}={value} is out of range; give 0 to {MAX_COUNT}")
    if not 0 <= job.seed <= MAX_SEED:
        raise InputError(f"seed={job.seed} is out of range; give 0 to {MAX_SEED}")
    if job.warmup_steps > job.num_steps:
        raise InputError(
            f"warmup_steps={job.warmup_steps} is more than num_steps={job.num_steps}, so the "
            f"learning rate would never be reached; give {job.num_steps} or less"
        )
    if job.seq_len > job.model.max_seq_len:
        raise InputError(
            f"seq_len={job.seq_len} is longer than {job.model.name}'s "
            f"{job.model.max_seq_len} positions; use {job.model.max_seq_len} or less",
            nearest={"seq_len": job.model.max_seq_len},
        )
    _check_update(job)
    _check_rule(job)
    _check_loss_scale(job)
    _check_kept(job)
    _check_routers(job)
    _check_adapter(job)
    _check_fp8(job)
    _check_qat(job)
    _check_task(job)
    _check_preference(job)
    return job


def _check_update(job: Job) -> None:
    for field in ("beta1", "beta2"):
        if not 0 <= getattr(job, field) < 1:
            raise InputError(
                f"{field}={getattr(job, field)} is out of range; give 0 or more and less than 1"
            )
    if not 0 < job.epsilon < 1:
        raise InputError(f"epsilon={job.epsilon} is out of range; give more than 0 and less than 1")


def _check_rule(job: Job) -> None:
    """Refuse what an optimizer's record says it does not do."""
    rule = OPTIMIZERS[job.optimizer]
    if rule.tells_hidden and job.task == MODULE:
        raise UnsupportedError(
            f"optimizer={rule.name} is not run for task={MODULE}, whose blocks nobody knows; use "
            f"optimizer={DEFAULT_OPTIMIZER}",
            nearest={"optimizer": DEFAULT_OPTIMIZER},
        )
    if not rule.masters and job.precision.endswith("-master"):
        whole = OPTIMIZERS[whole_of(rule) or DEFAULT_OPTIMIZER]
        instead = rounded_of(whole) if rule.rounds else whole.name
        raise UnsupportedError(
            f"optimizer={job.optimizer} with precision={job.precision} is not run by this version, "
            f"whose masters are updated in buckets; use {instead}, or {job.precision[:4]}-mixed",
            nearest={"optimizer": instead},
        )


def _check_loss_scale(job: Job) -> None:
    scale = job.loss_scale
    if (scale is not None) != (job.precision in SCALED):
        verb, fix = ("has", "leave it out") if scale else ("needs", "give one")
        raise InputError(
            f"precision={job.precision} {verb} a loss_scale, which belongs to "
            f"{' and '.join(sorted(SCALED))}; {fix}"
        )
    if scale is None:
        return
    if not 0 < scale.initial_scale <= MAX_SCALE:
        raise InputError(
            f"initial_scale={scale.initial_scale} is out of range; give more than 0, at most "
            f"{MAX_SCALE}"
        )
    if not 0 < scale.backoff_factor < 1 <= scale.growth_factor <= MAX_COUNT:
        raise InputError(
            f"backoff_factor={scale.backoff_factor} and growth_factor={scale.growth_factor} do not "
            f"shrink and grow; give less than 1 and 1 or more"
        )
    if not 1 <= scale.growth_interval <= MAX_COUNT:
        raise InputError(f"growth_interval={scale.growth_interval} is too few; give 1 or more")


def _check_kept(job: Job) -> None:
    if job.keep_fp32 and job.precision in IN_FP32:
        raise InputError(
            f"keep_fp32={','.join(job.keep_fp32)} has no meaning with precision={job.precision}, "
            f"which keeps everything in fp32; leave it out"
        )
    if not all(job.keep_fp32):
        raise InputError("keep_fp32 holds an empty name; give names of modules, such as norm")


def has_router_losses(job: Job) -> bool:
    """Whether losses of routers are run for a job."""
    return job.model.model_type in GROUPED and job.task in {"causal-lm", "chat"}


def _check_routers(job: Job) -> None:
    for field in ("router_aux_loss", "router_z_loss"):
        value = getattr(job, field)
        if not 0 <= value <= MAX_COUNT:
            raise InputError(f"{field}={value} is out of range; give 0 to {MAX_COUNT}")
        kinds, kind = ", ".join(sorted(GROUPED)), job.model.model_type
        if value and not has_router_losses(job):
            raise UnsupportedError(
                f"{field}={value} is not run for {job.model.name} (model_type={kind}, "
                f"task={job.task}), but for {kinds} as causal-lm and chat; leave it out",
                nearest={field: None},
            )


_CUT_OFF = frozenset({"gemma3n_text"})
"""Types whose class cuts weights off while it trains, in place (``altup_coef_clip``)."""


def _check_adapter(job: Job) -> None:
    adapter = job.adapter
    if (adapter is None) != (job.method in WHOLE):
        verb, fix = ("has none", "give one") if adapter is None else ("has one", "leave it out")
        raise InputError(
            f"method={job.method} and its adapter do not agree: the job {verb}; {fix}, or use "
            f"another method"
        )
    if adapter is None:
        return
    goes = adapter.base in QUANTIZED if job.method == "qlora" else adapter.base not in QUANTIZED
    if not goes and not (job.method == "dora" and adapter.base in FOUR_BITS):
        bases, fours = ", ".join(sorted(QUANTIZED)), " and ".join(sorted(FOUR_BITS))
        raise InputError(
            f"method={job.method} does not go with base={adapter.base}; qlora takes {bases}, "
            f"lora and dora take same, bf16 or fp16, and dora {fours} too",
            nearest={"method": "qlora"} if adapter.base in QUANTIZED else {"base": None},
        )
    if adapter.base in QUANTIZED and job.model.model_type in _CUT_OFF:
        raise UnsupportedError(
            f"base={adapter.base} does not go with {job.model.name}: its class cuts weights off in "
            f"every training step, and fails on weights in few bits; use method=lora",
            nearest={"method": "lora"},
        )
    if not 1 <= adapter.rank <= job.model.hidden_size:
        raise InputError(
            f"rank={adapter.rank} is out of range; give 1 to {job.model.name}'s "
            f"hidden_size={job.model.hidden_size}"
        )
    if not 0 < adapter.alpha <= MAX_COUNT:
        raise InputError(f"alpha={adapter.alpha} is out of range; give more than 0")
    if not adapter.targets:
        raise InputError(f"targets is empty, so nothing would be trained; use {ALL_LINEAR}")


def _check_fp8(job: Job) -> None:
    is_packed = job.method == QAT or (job.adapter is not None and job.adapter.base in QUANTIZED)
    if job.precision == FP8 and is_packed:
        raise UnsupportedError(
            f"precision={FP8} with method={job.method} is not run by this version, whose packed "
            f"layers multiply otherwise; use method=full or lora, or bf16-mixed"
        )


def _check_qat(job: Job) -> None:
    quantization = job.quantization
    if (quantization is not None) != (job.method == QAT):
        verb, fix = ("has", "leave it out") if quantization else ("needs", "give one")
        raise InputError(
            f"method={job.method} {verb} a quantization, which is what method={QAT} trains for; "
            f"{fix}"
        )
    if quantization is None:
        return
    check_quantization(quantization, job.model)
    if job.task in NOT_ROUNDED:
        raise UnsupportedError(
            f"method={QAT} with task={job.task} is not run by this version; use method=full, or "
            f"one of {', '.join(task for task in PACKINGS if task not in NOT_ROUNDED)}"
        )


def _check_task(job: Job) -> None:
    if (job.task == "module") != (job.model.model_type == MODULE):
        raise InputError(
            f"task={job.task} does not go with a model of type {job.model.model_type}; "
            f"task=module trains what a factory package.module:function makes"
        )
    allowed = PACKINGS[job.task]
    if job.packing not in allowed:
        raise InputError(
            f"packing={job.packing} does not go with task={job.task}; use {' or '.join(allowed)}"
        )


def _check_preference(job: Job) -> None:
    preference = job.preference
    if (preference is not None) != (job.task == PREFERENCE):
        verb, fix = ("has", "leave it out") if preference else ("needs", "give one")
        raise InputError(
            f"task={job.task} {verb} a preference, which is the loss of task={PREFERENCE}; {fix}"
        )
    if preference is None:
        return
    if not 0 < preference.beta <= MAX_COUNT:
        raise InputError(f"beta={preference.beta} is out of range; give more than 0, such as 0.1")
    if not 0 <= preference.label_smoothing < MOST_SMOOTHING:
        raise InputError(
            f"label_smoothing={preference.label_smoothing} is out of range; give 0 or more and "
            f"less than {MOST_SMOOTHING}, where a pair says nothing"
        )
