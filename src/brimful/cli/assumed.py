"""What was chosen for the user, and how long the run is that was asked about, as facts."""

import argparse
from importlib.util import find_spec
from typing import TYPE_CHECKING

from brimful.cli import defaults, resolved
from brimful.cli.expert_words import expert_facts
from brimful.cli.run_length import is_length_said
from brimful.show.summary import Fact
from brimful.units import GIB, Labelled, format_bytes, format_count

if TYPE_CHECKING:
    from brimful.cost.money import Prices
    from brimful.hardware.cluster import Cluster
    from brimful.hardware.datasheets import Datasheet
    from brimful.show.run import RunFacts
    from brimful.values.job import Job
    from brimful.values.plan import Estimate
    from brimful.values.strategy import Strategy


ASSUMED_LINES = 3
EXPERIMENTAL = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"
"""Without it attention is not fused on a Strix Halo."""


def assumed_facts(
    args: argparse.Namespace, job: "Job", *, is_timed: bool = True, is_whole: bool = False
) -> tuple[Fact, ...]:
    """Name what decides most and nobody typed; nothing beside a plan, which says it all.

    ``is_timed``: whether a speed is said. ``is_whole``: whether there is room for all, as ``-v``
    makes it; else it takes three lines.
    """
    if resolved.is_plan(args.model):
        return ()
    from brimful.techniques.optimizers import OPTIMIZERS

    rule = OPTIMIZERS[job.optimizer]
    is_counted = job.task != "module"
    chosen = {
        "seq_len": f"sequence length {job.seq_len:,}" if is_counted else "",
        "global_batch": f"batch {job.global_batch:,}",
        "precision": job.precision,
        "optimizer": job.optimizer,
        "beta1": f"momentum {job.beta1:g} (--beta1 0 keeps no state)" if rule.is_momentum else "",
        "network": _network_words(args),
    }
    words = ["a run of a billion tokens"] if getattr(args, "is_length_assumed", False) else []
    words += [text for name, text in chosen.items() if text and getattr(args, name) is None]
    words += [*_encoder_words(job), *_kernel_words(args, job)]
    words += [*(_speed_words(args) if is_timed else []), *_dropout_words(args, job)]
    words += [*(_link_words(args) if is_timed else []), *_router_words(job)]
    words += [*_label_words(args), *_rocm_words(args)]
    if job.task == "chat" and job.packing == "none":  # whose rows are as long as the chats in them
        words.append(f"every chat of {job.seq_len:,} tokens")
    if job.task == "seq2seq":  # one length, of both
        words.append(f"{job.seq_len:,} tokens read and as many written of each pair")
    has_room = is_whole or getattr(args, "verbose", False)
    told = words if has_room else _what_fits(words)
    assumed = (Fact("assumed", f"{', '.join(told)} (all: -v)"),) if words else ()
    facts = (*_size_facts(job), *_whole_facts(job), *_kernel_facts(args, job), *expert_facts(job))
    return (*facts, *_dropout_facts(job), *_update_facts(args, job), *assumed)


def _what_fits(words: list[str]) -> list[str]:
    """Return what three lines have room for, first what stands first, and count the rest."""
    from brimful.show.terminal import fact_lines

    def with_rest(kept: list[str]) -> list[str]:
        left = len(words) - len(kept)
        return [*kept, *([f"{left} more"] if left else [])]

    kept = list[str]()
    for word in words:
        told = f"{', '.join(with_rest([*kept, word]))} (all: -v)"
        if len(fact_lines([Fact("assumed", told)])) <= ASSUMED_LINES:
            kept.append(word)
    return with_rest(kept)


def _dropout_words(args: argparse.Namespace, job: "Job") -> list[str]:
    """Say that what the model's configuration drops is not counted, where nobody chose that."""
    from brimful.techniques.dropout import rates, rates_words
    from brimful.values.job import PREFERENCE

    is_said = getattr(args, "dropout", None) is not None or job.task == PREFERENCE
    if is_said or not rates(job):
        return []
    return [f"dropout off ({rates_words(job)} in its configuration; --dropout model counts it)"]


def _dropout_facts(job: "Job") -> tuple[Fact, ...]:
    """Say how much is dropped where it is, and what then changes the numbers of a run."""
    from brimful.techniques.dropout import OF_MODEL, drops, rates_words

    if job.dropout != OF_MODEL:
        return ()
    if not drops(job):
        return (Fact("dropout", "nothing: its configuration has none above 0"),)
    words = (
        f"{rates_words(job)}, as its configuration says; another micro-batch or attention kernel "
        f"draws other masks: exact in distribution, not in numbers"
    )
    return (Fact("dropout", words, f"{rates_words(job)}, as its configuration says"),)


def _size_facts(job: "Job") -> tuple[Fact, ...]:
    """Say how many parameters a model has that a file describes, and how many a token uses.

    Of mixtures both are said whoever describes them: all are held.
    """
    from brimful.files.writing import is_there
    from brimful.models.config import active_parameters, exact_count, has_layout

    count = exact_count(job.model)
    used = active_parameters(job.model) if count and has_layout(job.model) else count
    if not count or not (is_there(job.model.name) or used != count):
        return ()
    kind = f" ({job.model.model_type})" if is_there(job.model.name) else ""
    some = f", {format_count(used)} of them used by each token" if used and used != count else ""
    return (Fact("model", f"{format_count(count)} parameters{some}{kind}"),)


def _router_words(job: "Job") -> list[str]:
    """Say that a mixture is trained without the loss that its own configuration names."""
    from brimful.values.job import has_router_losses

    balance = job.model.hf_config.get("router_aux_loss_coef")
    if type(balance) not in {int, float} or not balance or job.router_aux_loss or job.adapter:
        return []
    takes = has_router_losses(job)
    return [f"without the loss of its routers{f' (--router-aux-loss {balance:g})' * takes}"]


def _whole_facts(job: "Job") -> tuple[Fact, ...]:
    """Say what modules take that train whole beside adapters, and what they would frozen."""
    from brimful.cost.least import least_of_whole
    from brimful.cost.trained import HALF_BYTES, num_whole
    from brimful.models.config import has_layout

    num = num_whole(job) if has_layout(job.model) else 0
    if not num or job.adapter is None:
        return ()
    words = (
        f"{format_bytes(least_of_whole(job).total)} of it are {format_count(num)} parameters of "
        f"{', '.join(job.adapter.trained_modules)} with gradients and optimizer state, frozen "
        f"{format_bytes(num * HALF_BYTES)} in 16 bits"
    )
    return (Fact("trained", words),)


def _update_facts(args: argparse.Namespace, job: "Job") -> tuple[Fact, ...]:
    """Say that a step takes more than its smaller state saves, beside an optimizer like it.

    Of one device, which updates whole matrices.
    """
    import msgspec

    from brimful.cost.update import CUDA, update_of
    from brimful.hardware.gpus import count_devices
    from brimful.models.config import has_layout
    from brimful.techniques.optimizers import OPTIMIZERS, whole_of

    gpus, rule = getattr(args, "gpus", None), OPTIMIZERS[job.optimizer]
    whole = "" if rule.pages else whole_of(rule)
    if not whole or not has_layout(job.model) or count_devices(gpus or defaults.GPUS) > 1:
        return ()
    here = {name: each for name, each in OPTIMIZERS.items() if not each.pages}
    names = [name for name, each in here.items() if whole_of(each) == whole]
    every = {name: update_of(msgspec.structs.replace(job, optimizer=name), CUDA) for name in names}
    ours = every.pop(job.optimizer)
    near = min(every, key=lambda name: every[name].kept + every[name].transient)
    its = every[near]
    if ours.kept >= its.kept or ours.kept + ours.transient <= its.kept + its.transient:
        return ()
    words = (
        f"{job.optimizer} keeps {format_bytes(ours.kept)}, and its step holds "
        f"{format_bytes(ours.transient)} more while it updates the largest matrix; {near} keeps "
        f"{format_bytes(its.kept)}, and its step {_none_or(its.transient)}"
    )
    return (Fact("step", words),)


def _none_or(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "nothing more"


def _encoder_words(job: "Job") -> list[str]:
    """Say what of a model that sees is counted as something else."""
    from brimful.models.encoders import beside_words, num_beside

    counted = beside_words(job.model)[1]
    return [counted] if counted and num_beside(job.model)[0] else []


def _card(args: argparse.Namespace) -> "tuple[str, Datasheet | None]":
    """Return the GPU that was asked about, and its data sheet; None: it is none that is shipped."""
    from brimful.hardware.datasheets import datasheets
    from brimful.hardware.names import find_gpu, split_counts

    name = find_gpu(split_counts(getattr(args, "gpus", None) or defaults.GPUS).gpu)
    return name, datasheets().get(name)


def _rocm_words(args: argparse.Namespace) -> list[str]:
    """Say by whose kernels an AMD card is answered."""
    from brimful.hardware.devices import has_cuda, is_modelled

    _, sheet = _card(args)
    if sheet is None or has_cuda(sheet) or not is_modelled(sheet):
        return []
    words = ["ROCm's kernels take no more than CUDA's (by PyTorch's source, not measured)"]
    if sheet.target == "gfx1151":
        is_given = getattr(args, "card_memory", None) is not None
        raised = "" if is_given else ", and GTT raised (Linux gives a GPU half the memory)"
        words.append(f"{EXPERIMENTAL}{raised}")
    return words


def _kernel_words(args: argparse.Namespace, job: "Job") -> list[str]:
    """Say what PyTorch's choice of attention is on a card that is too old for FlashAttention."""
    from brimful.cli.usual import place_of, usual_attention
    from brimful.hardware.cluster import AMPERE
    from brimful.hardware.gpus import device_named
    from brimful.models.kernels import attentions_of
    from brimful.techniques.kernel_support import why_not, writes_scores

    name, sheet = _card(args)
    is_chosen = getattr(args, "attention", None) is None and "efficient" in attentions_of(job)
    if sheet is None or sheet.maker != "NVIDIA" or sheet.capability >= AMPERE or not is_chosen:
        return []
    device = device_named(name)
    place = place_of(device)
    if usual_attention(job, device)[0] != "sdpa":
        return []
    if not writes_scores(job, place):
        return ["attention by PyTorch's memory-efficient kernel: flash needs Ampere"]
    other = "" if why_not(job, "efficient", place) else "; --attention efficient has a fused one"
    return [f"attention writes scores out: flash needs Ampere{other}"]


def _speed_words(args: argparse.Namespace) -> list[str]:
    """Say of a card's speed that runs do not bear out the range around it."""
    from brimful.hardware.compared import compared_words

    name, sheet = _card(args)
    words = compared_words(name) if sheet is not None else ""
    return [words] if words else []


def _label_words(args: argparse.Namespace) -> list[str]:
    """Say how a card's memory was read that was given in GB, and that nothing else is less."""
    from brimful.hardware.slices import slice_like
    from brimful.hardware.usable import is_set_aside

    label = getattr(args, "card_memory", None)
    if not isinstance(label, Labelled):
        return []
    size, has = f"{label / GIB:g}", format_bytes(resolved.card_bytes(args) or 0)
    name, sheet = _card(args)
    if sheet is not None and is_set_aside(sheet, label):
        return [f"{size}GB as set aside for the GPU: {has}, all of it for programs"]
    words = f"{size}GB as on a label: {size} GiB, {has} of it for programs (GiB is exact)"
    if sheet is None or label >= sheet.memory_bytes:
        return [words]
    cut = slice_like(name, label // GIB)
    slower = f"; a slice is slower: --gpus {cut}" if cut else ""
    return [words, f"computing as the whole card does{slower}"]


def fused_facts(strategy: "Strategy") -> tuple[Fact, ...]:
    """Say what has to be installed where a plan with fused kernels runs, if it is not here."""
    from brimful.techniques.fused_kernels import PACKAGES

    if strategy.fused_kernels != "liger" or all(map(find_spec, PACKAGES)):
        return ()
    return (Fact("needs", "liger-kernel and triton where it runs: pip install 'brimful[liger]'"),)


def is_network_assumed(args: argparse.Namespace) -> bool:
    """Whether nobody said what lies between nodes: no flag, nor the name of a cloud's machine."""
    from brimful.hardware.instances import network_of_instances
    from brimful.hardware.names import machine_of

    is_typed = getattr(args, "network", None) is not None
    return not is_typed and not network_of_instances(machine_of(args.gpus or ""))


def _network_words(args: argparse.Namespace) -> str:
    """Name what is assumed to lie between nodes; empty where there is one."""
    if not args.gpus or not hasattr(args, "network"):
        return ""
    from brimful.hardware.links import network_between
    from brimful.hardware.names import find_gpu, split_counts

    counts = split_counts(args.gpus)
    if counts.num_nodes == 1 or not is_network_assumed(args):  # noted
        return ""
    return f"network {network_between(find_gpu(counts.gpu))}"


def _link_words(args: argparse.Namespace) -> list[str]:
    """Name the slots by which cards of a machine are taken to reach each other, all lanes wide."""
    from brimful.hardware.links import node_links
    from brimful.hardware.names import split_counts

    _, sheet = _card(args)
    link = None if sheet is None else node_links(sheet)[0]
    if link is None or link.kind != "pcie" or split_counts(args.gpus or "").per_node == 1:
        return []
    return [f"{link.name} between GPUs (fewer lanes are slower)"]


def _kernel_facts(args: argparse.Namespace, job: "Job") -> tuple[Fact, ...]:
    """Say which packages' kernels are taken to run, or would take less than what runs."""
    from brimful.models.attention_source import missing_kernels, named_kernels

    named = named_kernels(job.model.model_type)
    missing = " and ".join(missing_kernels(job.model.model_type))
    own = "transformers' own code"
    if named and _card(args)[1] is None:
        words = f"{own}, for want of {missing} here; with it less memory" if missing else ""
    elif getattr(args, "fused_kernels", None) == "torch":
        words = f"{own}, not {named}, which take less" if named else ""
    else:
        words = f"{named}, installed there (--fused-kernels torch: without)" if named else ""
    return (Fact("kernels", words),) if words else ()


def run_of(
    args: argparse.Namespace,
    asked: resolved.Asked,
    estimate: "Estimate | None",
    step_s: float | None,
) -> "RunFacts":
    """Say how fast it goes, how long the run takes and what it costs.

    ``args``: the flags: a length and prices may be among them. ``estimate``: what was predicted;
    None: only the time of a step is known. ``step_s``: seconds per optimizer step; None: unknown.
    """
    from brimful.cli.limits import unchecked_facts
    from brimful.cost.money import cost_of
    from brimful.cost.network import waiting_share
    from brimful.show.run import RunFacts, bound_facts, speed_facts, would_be_facts

    job, cluster, strategy = asked
    if step_s is None and (eager_s := _eager_step_s(asked)) is not None:
        cost = cost_of(job, cluster, eager_s, prices_from(args))
        bounds = bound_facts(job, cost, eager_s, is_length_given=is_length_given(args))
        limits = unchecked_facts(args, "how much faster it is compiled is not known")
        return RunFacts((*bounds, *limits), bounds[:1])
    share = None
    if estimate is not None and cluster.num_nodes > 1 and step_s:
        share = waiting_share(*asked, step_s)
    speed = speed_facts(
        job, estimate, step_s, cluster=cluster, network_share=share,
        is_staged=strategy.pp > 1 and estimate is None, scores_s=_scores_s(asked, estimate),
    )  # fmt: skip
    cost = cost_of(job, cluster, step_s, prices_from(args))
    would_be = would_be_facts(
        job, cost, step_s, num_devices=cluster.num_devices, is_length_given=is_length_given(args)
    )
    return RunFacts((*speed, *money_facts(args, job, cluster, step_s)), would_be)


def _scores_s(asked: resolved.Asked, estimate: "Estimate | None") -> float:
    """Return what grows with the square of a row in the traffic of eager attention, 0 of others."""
    import msgspec

    from brimful.cost.estimate import estimate_or_none

    job, cluster, strategy = asked
    parts = None if estimate is None else estimate.predicted_step_time
    if parts is None or strategy.attention != "eager" or 2 * parts.memory_s < parts.total_s:
        return 0.0
    shorter = msgspec.structs.replace(job, seq_len=max(1, job.seq_len // 2))
    half = estimate_or_none(shorter, cluster, strategy)
    if half is None or half.predicted_step_time is None:
        return 0.0
    return 2 * (parts.memory_s - 2 * half.predicted_step_time.memory_s)


def _eager_step_s(asked: resolved.Asked) -> float | None:
    """Predict the step of what is compiled as if it were not; None: it is not, or no formula."""
    import msgspec

    from brimful.cost.estimate import estimate
    from brimful.cost.formula import missing_formula

    job, cluster, strategy = asked
    eager = msgspec.structs.replace(strategy, compile="none")
    if eager == strategy or missing_formula(job, eager, cluster.device):
        return None
    return estimate(job, cluster, eager).predicted_step_s


def money_facts(
    args: argparse.Namespace, job: "Job", cluster: "Cluster", step_s: float | None
) -> tuple[Fact, ...]:
    """Say how long the run takes, what it costs, and what of the limits that leaves.

    ``args``: the flags: a length and prices may be among them. ``step_s``: seconds per optimizer
    step; None: unknown.
    """
    from brimful.cli.limits import limit_facts
    from brimful.cost.assumptions import assumptions_for
    from brimful.cost.money import cost_of
    from brimful.show.run import run_facts
    from brimful.units import shown_in

    is_given = is_length_given(args)
    cost = cost_of(job, cluster, step_s, prices_from(args))
    slow = assumptions_for(cluster.device).time_high
    with shown_in(getattr(args, "currency", None)):
        return (
            *run_facts(job, cost, is_length_given=is_given),
            *limit_facts(args, cost, is_length_given=is_given, slow=slow),
        )


def limits_json(
    args: argparse.Namespace, job: "Job", cluster: "Cluster", step_s: float | None
) -> dict[str, object]:
    """Return whether a run keeps to its limits, for a JSON object; nothing where none was given.

    ``step_s``: seconds per optimizer step; None: unknown.
    """
    from brimful.cli.limits import kept_of
    from brimful.cost.money import cost_of

    cost = cost_of(job, cluster, step_s, prices_from(args))
    kept = kept_of(args, cost, is_length_given=is_length_given(args))
    return {} if kept is None else {"limits": kept._asdict()}


def is_length_given(args: argparse.Namespace) -> bool:
    """Whether somebody said how long a run is: a flag, or a plan."""
    return resolved.is_plan(args.model) or is_length_said(args)


def prices_from(args: argparse.Namespace) -> "Prices":
    """Read ``--prices`` over the prices that ship, of ``--market`` or of a cloud that is named."""
    from brimful.cost.money import on_machine, read_prices, shipped_prices
    from brimful.hardware.names import machine_of

    market = args.market
    if args.prices is None:
        prices = shipped_prices(market)
    else:
        prices = read_prices(args.prices, market, currency=getattr(args, "currency", None))
    machine = machine_of(getattr(args, "gpus", None) or "")
    return on_machine(prices, machine) if machine else prices
