"""The sentences that the terminal and the page share: the plan in words, and the verdict."""

from collections.abc import Sequence
from typing import Any

import msgspec

from brimful.cost.assumptions import describe
from brimful.cost.estimate import limit_bytes
from brimful.cost.managed import paging_words
from brimful.cost.money import Cost
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Cluster, Device, matrix_rate
from brimful.measure.verdict import Climbed, VerdictRow
from brimful.models.config import parameter_count
from brimful.search.record import Considered, SearchRecord
from brimful.show.predicted import offloaded_bytes
from brimful.show.settings import CHECKPOINTED, COMPILED_WORDS
from brimful.techniques.dropout import dropout_words
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.quantization import Quantization
from brimful.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_signed_percent,
)
from brimful.values.job import PREFERENCE, Job, Method, Precision, Task
from brimful.values.plan import Band, Estimate, Plan
from brimful.values.results import Collective, Measurement, Simulation
from brimful.values.strategy import (
    Strategy,
    is_flat,
    num_checkpointed,
    num_micro_batches,
    recompute_of,
    what_is_away,
    world_size,
)

UNKNOWN = "unknown"
ABSENT = "-"
_METHODS: dict[Method, str] = {"lora": "LoRA", "dora": "DoRA", "qlora": "QLoRA"}
NO_FORMULA = "peak unknown: no formula covers this job"


def fit_sentence(*, peak_bytes: int, usable_bytes: int) -> str:
    """Say whether a peak stays within the limit, with both numbers."""
    if peak_bytes <= usable_bytes:
        return f"fits: {format_bytes(peak_bytes)} of {format_bytes(usable_bytes)}"
    short_bytes = peak_bytes - usable_bytes
    return f"does not fit: {format_bytes(peak_bytes)}, short by {format_bytes(short_bytes)}"


def unestimated_assumptions(plan: Plan) -> tuple[str, ...]:
    """Say what a plan that no formula covers rests on, an assumption in a line."""
    strategy = plan.strategy
    away = what_is_away(plan.job, strategy)
    device = plan.cluster.device
    assumed = describe(device, updates_on_host=away.optimizer, dropout=dropout_words(plan.job))
    return (*assumed, *paging_words(plan.job, device))


def collectives_sentence(collectives: Sequence[Collective]) -> str:
    """Say what a device and the others tell each other in one step."""
    told = (
        f"{of.num_calls} {of.kind}{'s' * (of.num_calls > 1)} of {format_bytes(of.num_bytes)}"
        for of in collectives
    )
    return f"per step: {', '.join(told)}"


def share_words(num_bytes: float, total_bytes: float) -> str:
    """Print a share of a total in percent; of an empty total there is none."""
    return f"{100 * num_bytes / total_bytes:.1f} %" if total_bytes else ABSENT


def model_words(job: Job) -> str:
    """Name the model with its size: ``llama-3-8b (8.03B parameters, 32 blocks, width 4096)``."""
    model = job.model
    return (
        f"{model.name} ({num_parameters_words(job)}, {model.num_layers} blocks, "
        f"width {model.hidden_size})"
    )


def num_parameters_words(job: Job) -> str:
    """Print the number of parameters; of an architecture with no closed form it is unknown."""
    try:
        return f"{format_count(parameter_count(job.model).total)} parameters"
    except (BrimfulError, KeyError):
        return f"{UNKNOWN} number of parameters"


def job_inputs(job: Job) -> list[tuple[str, str]]:
    """List every field of the job by the name under which it can be set."""
    rest = job.__struct_fields__[1:]
    return [("model", model_words(job)), *((name, _setting(getattr(job, name))) for name in rest)]


def _setting(value: Any) -> str:
    """Print a setting; of one that is made of settings all of them."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, msgspec.Struct):
        inner = ((name, _setting(getattr(value, name))) for name in value.__struct_fields__)
        return " ".join(f"{name}={text}" for name, text in inner)
    return str(value)


def strategy_inputs(strategy: Strategy) -> list[tuple[str, str]]:
    """List every field of the strategy by the name under which it can be set."""
    return [(name, str(getattr(strategy, name))) for name in strategy.__struct_fields__]


def _limit(cluster: Cluster) -> list[tuple[str, str]]:
    limit = cluster.memory_limit_bytes
    return [("memory_limit", format_bytes(limit))] if limit else []


def cluster_inputs(cluster: Cluster, precision: Precision) -> list[tuple[str, str]]:
    """List what is known of the machine; a rate of 0 is unknown.

    ``precision``: the recipe, whose own rate is listed beside fp32's.
    """
    device = cluster.device
    return [
        ("gpus", f"{cluster.num_devices} x {cluster.name}"),
        ("device", device.description),
        ("kernels", device.kernels),
        ("usable_memory", format_bytes(device.usable_bytes)),
        *_limit(cluster),
        *_rates(device, precision),
        ("memory_rate", _rate(device.memory_bytes_per_s, "B")),
        ("op_overhead", format_seconds(device.op_overhead_s)),
        ("calibrated", "yes" if device.calibrated else "no"),
        (
            "host_memory",
            format_bytes(cluster.host_ram_bytes) if cluster.host_ram_bytes else UNKNOWN,
        ),
        ("source", device.source),
    ]


def _rates(device: Device, precision: Precision) -> list[tuple[str, str]]:
    """List the rate at which the recipe's products run, after that of fp32."""
    rows = [("fp32_rate", device.matrix_flops_per_s.fp32)]
    if precision != "fp32":
        rows.append((f"{precision}_rate", matrix_rate(device, precision)))
    return [(name, _rate(rate, "FLOP")) for name, rate in rows]


def _rate(rate_per_s: float, unit: str) -> str:
    return format_rate(rate_per_s, unit) if rate_per_s else UNKNOWN


def machine_words(cluster: Cluster) -> str:
    """Name the machine: its key, what it is, and what it offers."""
    device = cluster.device
    count = f"{cluster.num_devices} x " if cluster.num_devices > 1 else ""
    described = device.description if device.description != cluster.name else ""
    return f"{count}{cluster.name}{described and ', ' + described}"


OPENED_BY: dict[Task, str] = {
    "causal-lm": "transformers.AutoModelForCausalLM.from_pretrained",
    "chat": "transformers.AutoModelForCausalLM.from_pretrained",
    "dpo": "transformers.AutoModelForCausalLM.from_pretrained",
    "sequence-classification": "transformers.AutoModelForSequenceClassification.from_pretrained",
    "masked-lm": "transformers.AutoModelForMaskedLM.from_pretrained",
    "seq2seq": "transformers.AutoModelForSeq2SeqLM.from_pretrained",
    "module": "safetensors.torch.load_model, into what the factory makes",
}
"""What reads a trained model."""


def plan_words(plan: Plan) -> str:
    """Say in one sentence what is run and how."""
    job, strategy = plan.job, plan.strategy
    how = [
        *_device_words(strategy),
        _checkpointing_words(job, strategy),
        *_loss_words(job, strategy),
        *_reference_words(strategy),
        *_other_words(strategy),
    ]
    if job.task != "module":
        how.append(f"{strategy.attention} attention")
    return (
        f"Train {_trained_words(job)} for {job.task} in {job.precision} with {job.optimizer}: "
        f"{job.num_steps} steps of {_batch_words(job)}, {_micro_batch_words(job, strategy)}; "
        f"{', '.join(how)}."
    )


def _trained_words(job: Job) -> str:
    """Say which parameters are trained."""
    adapter = job.adapter
    if job.quantization is not None:
        return f"all parameters, for {_quantized_words(job.quantization)},"
    if adapter is None:
        return "all parameters"
    more = f" and {', '.join(adapter.trained_modules)}" if adapter.trained_modules else ""
    base = "" if adapter.base == "same" else f", base in {adapter.base}"
    targets = ", ".join(adapter.targets)
    return (
        f"{_METHODS[job.method]} adapters{more} (rank {adapter.rank}, alpha {adapter.alpha:g}, on "
        f"{targets}{base})"
    )


def _quantized_words(quantization: Quantization) -> str:
    """Name a scheme: ``int8 rows``, ``int4 groups of 32``."""
    size = quantization.group_size
    return f"{quantization.scheme} {f'groups of {size}' if size else 'rows'}"


def _batch_words(job: Job) -> str:
    if job.task == "module":
        return f"{job.global_batch} samples"
    if job.task == PREFERENCE:
        return f"{job.global_batch} pairs of at most {job.seq_len} tokens each"
    rows = {"wrapped": "sequences", "none": "samples of at most", "documents": "packed rows"}
    of = "" if job.packing == "none" else "of "
    return f"{job.global_batch} {rows[job.packing]} {of}{job.seq_len} tokens"


def spread_words(strategy: Strategy) -> str:
    """Name the stage of ZeRO and its shards: ``3 x 8``, ``2 x 4 hold tp 2``, ``0`` for DDP.

    Of a pipeline its order of work too, but for 1F1B, and its stages: ``0 pp 4 interleaved 2``.
    """
    shards = f" x {strategy.dp_shard}" if strategy.zero else ""
    hold = " hold" if strategy.accumulate == "hold" else ""
    cut = f" tp {strategy.tp}" if strategy.tp > 1 else ""
    parted = f" ep {strategy.ep}" if strategy.ep > 1 else ""
    order = "" if strategy.pp_schedule == "1f1b" else f" {strategy.pp_schedule}"
    several = f" {strategy.stages_per_device}" if strategy.stages_per_device > 1 else ""
    row = f" pp {strategy.pp}{order}{several}" if strategy.pp > 1 else ""
    flat = " fsdp 1" if is_flat(strategy) else ""
    return f"{strategy.zero}{shards}{flat}{hold}{cut}{parted}{row}"


def _device_words(strategy: Strategy) -> list[str]:
    """Say in words how a model is spread; nothing of one device."""
    num = world_size(strategy)
    if strategy.engine == "deepspeed":
        devices = "one device" if num == 1 else f"{num} devices"
        return [f"on {devices} by {_deepspeed_words(strategy)}"]
    if num == 1:
        return []
    row = _row_words(strategy) if strategy.pp > 1 else ""
    cut = f"every matrix cut over {strategy.tp}" if strategy.tp > 1 else ""
    parted = f"experts parted among {strategy.ep}" if strategy.ep > 1 else ""
    what = ", ".join(filter(None, (row, cut, parted, _SHARDED[strategy.zero])))
    if strategy.zero == 0:
        return [f"on {num} devices, {', '.join(filter(None, (row, cut, parted))) or what}"]
    groups = f" in each of {strategy.dp_replicate} groups" if strategy.dp_replicate > 1 else ""
    by = " by FSDP1" if is_flat(strategy) else ""
    return [f"on {num} devices, {what} sharded over {strategy.dp_shard}{groups}{by}"]


def _row_words(strategy: Strategy) -> str:
    """Say how a pipeline is laid out."""
    several = strategy.stages_per_device
    each = f" of {several} stages each" if several > 1 else ""
    return f"blocks in a row of {strategy.pp}{each} ({strategy.pp_schedule})"


def _deepspeed_words(strategy: Strategy) -> str:
    away = {
        "none": "",
        "optimizer": ", optimizer state on the host",
        "parameters": ", parameters and optimizer state on the host",
    }
    said = f" ({strategy.engine_settings})" if strategy.engine_settings else ""
    return f"DeepSpeed's ZeRO-{strategy.zero}{said}{away[strategy.offload]}"


_SHARDED = {
    0: "each with the whole model",
    1: "optimizer state",
    2: "gradients and optimizer state",
    3: "parameters, gradients and optimizer state",
}


def _other_words(strategy: Strategy) -> list[str]:
    """Say what is on the host, when parameters are updated, and what the allocator is told."""
    words = []
    if strategy.engine == "torch" and strategy.offload != NO_OFFLOAD:
        words.append(f"{strategy.offload.replace(',', ' and ')} on the host")
    if strategy.optimizer_in_backward:
        words.append("updated inside the backward pass")
    if strategy.compile != "none":
        words.append(COMPILED_WORDS[strategy.compile])
    if strategy.fused_kernels == "liger":
        words.append("Liger's fused kernels")
    if strategy.allocator:
        words.append(f"allocator {strategy.allocator}")
    return words


def _micro_batch_words(job: Job, strategy: Strategy) -> str:
    count = num_micro_batches(job, strategy)
    if count == 1:
        return "in one micro-batch"
    return f"in {count} micro-batches of {strategy.micro_batch}"


def _checkpointing_words(job: Job, strategy: Strategy) -> str:
    num_layers = job.model.num_layers
    count = num_checkpointed(strategy, num_layers=num_layers)
    if count == 0:
        return "no activation checkpointing"
    how = CHECKPOINTED[recompute_of(strategy)]
    return f"every block {how}" if count == num_layers else f"{count} of {num_layers} blocks {how}"


def _loss_words(job: Job, strategy: Strategy) -> list[str]:
    """Say whether the logits of all tokens are there at once; other tasks have few."""
    if job.task not in {"causal-lm", "chat", "masked-lm", PREFERENCE}:
        return []
    whole = strategy.loss_chunks == 1
    return ["whole logits" if whole else f"loss in {strategy.loss_chunks} chunks"]


def _reference_words(strategy: Strategy) -> list[str]:
    """Say where the reference model of a preference task is."""
    words = {
        "resident": "reference model beside it",
        "offloaded": "reference model in host memory",
        "adapters-off": "itself without adapters as reference",
        "precomputed": "reference computed beforehand",
    }
    return [words[strategy.reference]] if strategy.reference in words else []


def verdict_sentence(
    plan: Plan, simulation: Simulation | None, measurement: Measurement | None
) -> str:
    """Say whether it fits on the highest rung climbed, and how far that lies from the others."""
    return rungs_sentence(Climbed(plan.estimate, simulation, measurement, limit_bytes(plan)))


def rungs_sentence(climbed: Climbed) -> str:
    """Say the same of rungs that no plan need stand behind."""
    estimate, simulation, measurement, usable_bytes = climbed
    predicted = estimate.predicted_peak_allocated_bytes if estimate else None
    simulated = simulation.simulated_peak_allocated_bytes if simulation else None
    if measurement is not None:
        peak, rung, missing = measurement.measured_peak_allocated_bytes, "measured", ""
    elif simulated is not None:
        peak, rung, missing = simulated, "simulated", " Not measured yet."
    elif predicted is not None:
        peak, rung, missing = predicted, "predicted", " Not simulated or measured yet."
    else:
        return f"{NO_FORMULA.capitalize()}. Not simulated or measured yet."
    below = {"simulated": simulated, "predicted": predicted}
    against = " and ".join(
        f"{format_signed_percent(peak, reference)} against {name}"
        for name, reference in below.items()
        if name != rung and reference is not None
    )
    claim = _claim(rung, peak, usable_bytes)
    return f"{claim}{against and ', ' + against}.{missing}"


def _claim(rung: str, peak_bytes: int, usable_bytes: int) -> str:
    peak, usable = format_bytes(peak_bytes), format_bytes(usable_bytes)
    if peak_bytes <= usable_bytes:
        return f"Fits: {rung} peak {peak} of {usable}"
    short = format_bytes(peak_bytes - usable_bytes)
    return f"Does not fit: {rung} peak {peak}, short by {short} of {usable}"


def verdict_cells(row: VerdictRow) -> tuple[str, str, str, str, str, str]:
    """Spell one row of a verdict: its name, the three rungs, and the two signed errors.

    Where the second rung was not climbed the measurement is compared with the prediction, and
    the cell says so.
    """
    reference, suffix = row.simulated, ""
    if reference is None:
        reference, suffix = row.predicted, " vs pred"
    last = error_words(row.measured, reference)
    return (
        row.name,
        format_value(row.predicted, unit=row.unit),
        format_value(row.simulated, unit=row.unit),
        format_value(row.measured, unit=row.unit),
        error_words(row.simulated, row.predicted),
        last if last == ABSENT else last + suffix,
    )


def format_value(value: float | None, *, unit: str) -> str:
    """Print bytes (``unit="bytes"``) or seconds; "-" where there is no value."""
    if value is None:
        return ABSENT
    return format_bytes(value) if unit == "bytes" else format_seconds(value)


def error_words(value: float | None, reference: float | None) -> str:
    """Print the signed error of a rung against the one before it; "-" where one is absent."""
    if value is None or reference is None:
        return ABSENT
    return format_signed_percent(value, reference)


def considered_fit(row: Considered, *, usable_bytes: int) -> str:
    """Say whether a strategy fits, and by how much it does not."""
    if row.fits:
        return "fits"
    if row.peak_bytes <= usable_bytes:
        return "out of memory"
    return f"short by {format_bytes(row.peak_bytes - usable_bytes)}"


def format_band(band: Band | None, *, unit: str) -> str:
    """Print a band in bytes (``unit="bytes"``) or seconds; an absent one is unknown."""
    if band is None:
        return UNKNOWN
    spell = format_bytes if unit == "bytes" else format_seconds
    return f"{spell(band.low)} to {spell(band.high)}"


def step_time_words(estimate: Estimate | None) -> str:
    """Print the predicted step time with its band and its parts."""
    if estimate is None:
        return f"{UNKNOWN} (no formula covers this job)"
    if estimate.predicted_step_s is None:
        return f"{UNKNOWN} (the device's rates are unknown)"
    text = format_seconds(estimate.predicted_step_s)
    if estimate.predicted_step_band_s is not None:
        text += f" ({format_band(estimate.predicted_step_band_s, unit='s')})"
    parts = estimate.predicted_step_time
    if parts is None:
        return text
    what = "the host" if offloaded_bytes(estimate) else "collectives"
    between = f", {what} beyond that {format_seconds(parts.exposed_s)}"
    return (
        f"{text}: matrix products {format_seconds(parts.matrix_s)}, "
        f"memory traffic {format_seconds(parts.memory_s)}, "
        f"launches {format_seconds(parts.launch_s)}{between if parts.exposed_s else ''}"
    )


def speed_words(estimate: Estimate) -> list[tuple[str, str]]:
    """List tokens per second and what share of the devices' rate a step uses."""
    if estimate.tokens_per_s is None:
        return []
    rows = [("speed", f"{format_count(estimate.tokens_per_s)} tokens/s")]
    if estimate.mfu is not None and estimate.hfu is not None:
        rows.append(
            ("MFU, HFU", f"{estimate.mfu:.1%} without, {estimate.hfu:.1%} with recomputing")
        )
    return rows


def cost_words(cost: Cost) -> list[tuple[str, str]]:
    """List what a run costs; what is unknown says so."""
    energy, usd = cost.energy_kwh, cost.usd
    return [
        ("tokens", f"{format_count(cost.num_tokens)} in {cost.num_steps} steps"),
        ("time", UNKNOWN if cost.hours is None else format_seconds(cost.hours * 3600)),
        ("GPU-hours", UNKNOWN if cost.gpu_hours is None else f"{cost.gpu_hours:,.4g}"),
        ("energy", UNKNOWN if energy is None else f"{energy:,.4g} kWh"),
        ("dollars", UNKNOWN if usd is None else f"{usd:,.2f} USD"),
    ]


def untried_sentence(record: SearchRecord) -> str:
    """Say what a search that ended early did not look at; empty where it came to its end."""
    left = record.untried
    if left is None:
        return ""
    words = (
        f"the search ended early, as {left.why}: {record.num_considered} simulated; not tried, and "
        f"not decided by what was: {left.num_strategies} of {left.num_most} combinations"
    )
    return f"{words} ({'; '.join(left.ways)})" if left.ways else words


def process_words(estimate: Estimate) -> str:
    """Say what the driver would: the likeliest figure where there was a replay, and a band."""
    replayed, band = estimate.predicted_reserved, estimate.predicted_process_bytes
    words = format_band(band, unit="bytes")
    if replayed is None or replayed.predicted_process_bytes is None or band is None:
        return words
    likely = replayed.predicted_process_bytes
    if replayed.short_bytes:  # beside the range of what it would take, not of where it ends
        likely += replayed.predicted_unhindered_bytes - replayed.predicted_peak_reserved_bytes
    return f"{format_bytes(likely)} most likely, {words}"
