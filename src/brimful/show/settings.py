"""A strategy in the words that people use for its settings."""

from msgspec.structs import replace

from brimful.allocator.config import EXPANDABLE
from brimful.models.mixtures import known_experts
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.job import PREFERENCE, QUANTIZED, Job
from brimful.values.strategy import (
    Compile,
    Recompute,
    Strategy,
    is_flat,
    num_checkpointed,
    num_micro_batches,
    recompute_of,
    what_is_away,
    world_size,
)

CHECKPOINTED: dict[Recompute, str] = {
    "full": "checkpointed",
    "selective": "selectively checkpointed",
    "alternate": "checkpointed but for every second product",
}
COMPILED_WORDS: dict[Compile, str] = {
    "none": "",
    "blocks": "compiled blocks",
    "loss": "compiled loss",
    "blocks+loss": "compiled blocks and loss",
    "model": "the whole model compiled",
}
_REFERENCE = {
    "resident": "reference model in GPU memory",
    "offloaded": "reference model offloaded to the CPU",
    "adapters-off": "reference: the model without its adapters",
    "precomputed": "reference computed beforehand",
}


def settings_words(job: Job, strategy: Strategy) -> tuple[str, ...]:
    """Say each setting of a strategy in words; what is left as usual is left out."""
    words = [
        *_parallel(strategy),
        _micro_batch(job, strategy),
        _checkpointing(job, strategy),
        _loss(job, strategy),
        "" if job.task == "module" else _attention(strategy),
        _REFERENCE.get(strategy.reference, "") if job.task == PREFERENCE else "",
        _experts(job),
        _offloaded(job, strategy),
        "optimizer step inside the backward pass" if strategy.optimizer_in_backward else "",
        COMPILED_WORDS[strategy.compile],
        "Liger kernels" if strategy.fused_kernels == "liger" else "",
        allocator_words(strategy),
    ]
    return tuple(word for word in words if word)


def differing_words(job: Job, strategy: Strategy, other: Strategy) -> tuple[str, ...]:
    """Say what of another strategy is not as in this one; at least that it lacks something."""
    alike = strategy == replace(other, accumulate=strategy.accumulate)
    if alike and _holds(strategy) and not _holds(other):
        return ("gradients reduced after each micro-batch, without no_sync",)
    ours, theirs = settings_words(job, strategy), settings_words(job, other)
    more = tuple(word for word in theirs if word not in ours)
    return more or tuple(f"without {word}" for word in ours if word not in theirs)


def _parallel(strategy: Strategy) -> list[str]:
    """Say how the model is sharded and replicated."""
    if strategy.engine == "deepspeed":
        return [f"DeepSpeed ZeRO-{strategy.zero} over {world_size(strategy)} GPUs"]
    tp, pp, ep = strategy.tp, strategy.pp, strategy.ep
    several = strategy.stages_per_device
    order = (
        f"{strategy.pp_schedule}, {several} stages a GPU" if several > 1 else strategy.pp_schedule
    )
    return [
        _data_parallel(strategy),
        f"tensor parallel {tp}" if tp > 1 else "",
        f"pipeline parallel {pp} ({order})" if pp > 1 else "",
        f"expert parallel {ep}" if ep > 1 else "",
    ]


def _data_parallel(strategy: Strategy) -> str:
    shard, replicate = strategy.dp_shard, strategy.dp_replicate
    if strategy.zero:
        copies = f" x {replicate} replicas" if replicate > 1 else ""
        by = " by FSDP1" if is_flat(strategy) else ""
        return f"ZeRO-{strategy.zero} over {shard} GPU{'s' * (shard > 1)}{copies}{by}"
    return f"DDP over {replicate} GPUs (a whole copy on each)" if replicate > 1 else ""


def _micro_batch(job: Job, strategy: Strategy) -> str:
    count = num_micro_batches(job, strategy)
    if count == 1:
        return f"micro-batch {strategy.micro_batch}"
    hold = " (no_sync)" if _holds(strategy) else ""
    return f"micro-batch {strategy.micro_batch} x {count} accumulation steps{hold}"


def _holds(strategy: Strategy) -> bool:
    """Whether gradients of several devices wait for the last micro-batch, as in no pipeline."""
    return strategy.accumulate == "hold" and strategy.pp == 1 and world_size(strategy) > 1


def _checkpointing(job: Job, strategy: Strategy) -> str:
    num_layers = job.model.num_layers
    count = num_checkpointed(strategy, num_layers=num_layers)
    if count == 0:
        return "no checkpointing"
    how = CHECKPOINTED[recompute_of(strategy)]
    which = f"all {num_layers}" if count == num_layers else f"{count} of {num_layers}"
    return f"{which} layers {how}"


def _loss(job: Job, strategy: Strategy) -> str:
    if job.task not in {"causal-lm", "chat", "masked-lm", PREFERENCE} or strategy.loss_chunks == 1:
        return ""
    return f"loss in {strategy.loss_chunks} chunks"


def _experts(job: Job) -> str:
    """Say that a quantised base has experts that are not: stacked weights are no linear layers."""
    is_quantized = job.adapter is not None and job.adapter.base in QUANTIZED
    has_experts = known_experts(job.model).num_experts > 0
    return "experts not quantised" if is_quantized and has_experts else ""


def _attention(strategy: Strategy) -> str:
    return "" if strategy.attention == "sdpa" else f"{strategy.attention} attention"


def _offloaded(job: Job, strategy: Strategy) -> str:
    """Say what is in the CPU's memory between its uses."""
    if strategy.offload == NO_OFFLOAD:
        return ""
    if strategy.engine != "torch":
        return f"{strategy.offload} offloaded"
    away = what_is_away(job, strategy)
    counts = {"parameters": away.parameters, "activations": away.activations}
    parts = [f"{what} of {num} layers" for what, num in counts.items() if num]
    optimizer = ["optimizer"] if away.optimizer or away.states else []
    return f"offloaded to the CPU: {', '.join(optimizer + parts)}"


def allocator_words(strategy: Strategy) -> str:
    """Say which settings of the allocator are not PyTorch's own; empty where all are."""
    if strategy.allocator == EXPANDABLE:
        return "expandable segments"
    return f"allocator {strategy.allocator}" if strategy.allocator else ""
