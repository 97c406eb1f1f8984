"""The answer to ``plan``: the fastest strategy that fits, why it, and what else there is."""

from collections.abc import Sequence

from msgspec.structs import replace

from brimful.cost.estimate import limit_bytes
from brimful.cost.host import rounding_bytes
from brimful.cost.states import held_bytes, staying_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.search.most import Most, largest_micro_batch, leanest, longest
from brimful.search.record import Considered, Untried
from brimful.search.solve import Solution
from brimful.search.table import Objective
from brimful.search.ways_out import WayOut, least_devices
from brimful.show.beside import Known, against_facts
from brimful.show.estimate import largest_facts, shortened
from brimful.show.left_out import lacking_bytes, left_out_facts
from brimful.show.managed import paged_facts
from brimful.show.predicted import (
    HOST,
    TENSORS_ALONE,
    host_facts,
    host_meter,
    host_needs,
    host_share,
    meter_of,
    offloaded_bytes,
    offloaded_facts,
    replayed_meter,
    saving_facts,
    subject_words,
    tight_facts,
    verdict_of,
)
from brimful.show.run import RunFacts
from brimful.show.settings import differing_words, settings_words
from brimful.show.summary import VERDICTS, Fact, Meter, Summary, Verdict, on_each
from brimful.techniques.runnable import check_strategy
from brimful.units import format_bytes
from brimful.values.job import PREFERENCE
from brimful.values.plan import MemoryItem, Plan
from brimful.values.results import REFERENCE, Reserved
from brimful.values.strategy import Strategy, gathers

LEAST_SLOWER = 0.0005
"""Below this share two step times are told as equal."""
LEAST_SAVED = 0.02
"""Of the plan's peak: a strategy that saves less is no help where it is too tight."""
LEAST_OF_A_TEXT = 1 / 8
"""Of the length that was asked for: what holds only less is no text that stands for it."""
NUM_NAMED = 4
"""Settings by which another strategy is told."""
_BEST: dict[Objective, str] = {"time": "fastest", "cost": "cheapest", "memory": "leanest"}


def plan_summary(
    found: Solution, run: RunFacts, proven: Reserved | None = None, *, is_ours: bool = True
) -> Summary:
    """Say what a search found.

    ``proven``: what simulating said of it, which stands before what was predicted. ``is_ours``:
    whether our own loop runs it, with whatever settings.
    """
    plan, best = found.plan, found.record.rows[0]
    made = plan.estimate
    verdict: Verdict = "FITS" if best.fits else "NO"
    meter = Meter(
        best.peak_bytes, limit_bytes(plan), f"simulated{TENSORS_ALONE if best.fits else ''}"
    )
    if made is not None:
        verdict, meter = verdict_of(made), meter_of(made)
    tight = tight_facts(None if made is None else made.predicted_reserved)
    proven = found.reserved if proven is None else proven
    if proven is not None:
        verdict, tight = VERDICTS[proven.word], tight_facts(proven)
        meter = replayed_meter(proven)
    host = host_meter(made) or _simulated_host(found)
    if meter.used_bytes > meter.usable_bytes and not offloaded_bytes(made):
        host = None  # what it would keep of a run that no GPU holds helps nobody
    rounded = 0
    if host is not None and made is not None:
        rounded = rounding_bytes(plan.job, plan.cluster, plan.strategy)
    fits = (best.fits or host is not None) and verdict != "NO"
    lacking = lacking_bytes(plan.job, plan.strategy, meter) if verdict == "FITS" else 0
    if host is not None:
        verdict = "NO"
    left_out = _left_out(found) if verdict == "NO" and host is None else ()
    if verdict == "NO" and (found.record.untried is not None or left_out):
        verdict = "UNKNOWN"
    settings = Fact(
        "settings" if fits else "nearest", ", ".join(settings_words(plan.job, plan.strategy))
    )
    if not fits:
        why = (*left_out, *(() if best.fits else _tried(found)), *_shorter(found, is_ours=is_ours))
    elif verdict == "FITS":
        first, *faster = _why(found)
        most = () if lacking else _most(found, is_ours=is_ours)
        why = (first, *most, *_tighter(found, lacking), *faster)
    else:
        why = (*_untried(found), *_shorter(found, is_ours=is_ours))
    return Summary(
        "TIGHT" if lacking else verdict,
        subject_words(plan.job, plan.cluster),
        on_each(meter, plan.cluster.num_devices, plan.cluster.device.kernels),
        (
            *left_out_facts(plan.job, lacking),
            *host_facts(host, meter, made, rounded=rounded),
            *tight,
            *(paged_facts(plan.job, plan.cluster, plan.strategy, meter) if fits else ()),
            settings,
            *(() if fits else _at_peak(found, meter)),
            *(host_needs(made) if fits else _beside_gpu(found)),
            *(run.fitting if fits else run.would_be),
            *saving_facts(made),
            *(_routing(plan.strategy) if fits else ()),
            *_against(found),
            *why,
        ),
        host,
    )


def _routing(strategy: Strategy) -> tuple[Fact, ...]:
    """Say that experts are taken to be chosen evenly, where devices part them."""
    if strategy.ep == 1:
        return ()
    words = "even, as taken here; brimful simulate with the plan says what the worst takes"
    return (Fact("routing", words),)


def _at_peak(found: Solution, meter: Meter) -> tuple[Fact, ...]:
    """Say in a line what the peak is made of: ways out follow, which have more to say."""
    every = shortened(largest_facts(_items(found), meter.used_bytes))
    return tuple(Fact(each.label, each.short) for each in every)


def _items(found: Solution) -> tuple[MemoryItem, ...]:
    """Return what is alive at the peak of what does not fit."""
    made = found.plan.estimate
    return found.items if made is None else made.items


def _beside_gpu(found: Solution) -> tuple[Fact, ...]:
    """Say what the host takes of what it has, and what offloading lacks where it was looked at."""
    made = found.plan.estimate
    host = _simulated_share(found) if made is None else host_share(made)
    if found.offloaded is not None:
        return (*host, *offloaded_facts(found.offloaded, found.plan.cluster.host_ram_bytes))
    return host or offloaded_facts(found.plan)


def _simulated_share(found: Solution) -> tuple[Fact, ...]:
    has, held = found.plan.cluster.host_ram_bytes, found.host_bytes
    if not held:
        return ()
    of_it = f" of {format_bytes(has)}" if has else ""
    return (Fact("host", f"{format_bytes(held)}{of_it}, simulated"),)


def _simulated_host(found: Solution) -> Meter | None:
    """Return what a simulated run keeps on a host that has too little for it."""
    cluster, held = found.plan.cluster, found.host_bytes
    if not cluster.host_ram_bytes or held <= cluster.host_ram_bytes:
        return None
    return Meter(held, cluster.host_ram_bytes, "simulated", HOST)


def _against(found: Solution) -> tuple[Fact, ...]:
    """Say what the recipe and the optimizer save that the user chose, with the same settings."""
    plan, best = found.plan, found.record.rows[0]
    made = plan.estimate
    is_replayed = made is not None and made.fits and made.predicted_reserved is not None
    used = meter_of(made).used_bytes if is_replayed and made is not None else None
    known = Known(best.peak_bytes, best.step_s, best.fits, used)
    return against_facts(plan.job, plan.cluster, plan.strategy, known, same_method=True)


def _why(found: Solution) -> tuple[Fact, ...]:
    """Say why this one: of how many it is the fastest, and what the next faster ones lack."""
    record, best = found.record, found.record.rows[0]
    how = "tried" if record.rung == "predicted" else "simulated"
    best_is = _BEST["time" if found.space is None else found.space.objective]
    one = (
        "only one fits"
        if record.num_fitting == 1
        else f"{best_is} of {record.num_fitting:,} that fit"
    )
    if best.step_s is None:
        several = f"one of {record.num_fitting:,} that fit"
        one = f"{'only one fits' if record.num_fitting == 1 else several}; speeds are unknown"
    words = f"{one}, {record.num_considered:,} {how}"
    if record.untried is not None:
        words = f"{one} so far, of {record.num_considered:,} {how}{_left_words(record.untried)}"
    lacking: tuple[Fact, ...] = ()
    faster = [row for row in record.rows[1:] if not row.fits and _is_faster(row, best)]
    if faster and best.step_s:
        near = min(faster, key=lambda row: row.peak_bytes)
        share = 1 - (near.step_s or 0.0) / best.step_s
        what = _what_differs(found, near)
        lacks = f"with {format_bytes(near.peak_bytes)} of tensors"
        if near.peak_bytes <= limit_bytes(found.plan):
            lacks = "no sure fit when replayed"
        lacking = (Fact("faster", f"by {_percent(share)}, but {lacks}: {what}"),)
    elif best.step_s and record.untried is None:
        all_fit = record.num_fitting == record.num_considered
        words += "" if all_fit else "; none that is too large would be faster"
    short = "; ".join(each.partition(": ")[0] for each in record.left_out)
    return (Fact("why", "; ".join((words, *record.left_out)), short), *lacking)


def _left_words(left: Untried) -> str:
    """Say how many more settings there were, and why they were not looked at."""
    more = f" before {left.num_strategies:,} more" if left.num_strategies else ""
    return f"; {left.why}{more}"


def _is_faster(row: Considered, best: Considered) -> bool:
    return row.step_s is not None and best.step_s is not None and row.step_s < best.step_s


def _most(found: Solution, *, is_ours: bool) -> tuple[Fact, ...]:
    """Say how long a text, and how many at once, the same GPUs hold with everything recomputed.

    Where no formula says that, or another program's settings are its own: with those of the plan.
    """
    plan = found.plan
    if plan.estimate is None or plan.job.task == "module":
        return ()
    for lean in _leaner(plan, is_ours=is_ours):
        text = longest(plan.job, plan.cluster, lean)
        texts = largest_micro_batch(plan.job, plan.cluster, lean)
        if text or texts:
            return (_most_words(plan, lean, text, texts),)
    return ()


def _most_words(plan: Plan, lean: Strategy, text: Most | None, texts: Most | None) -> Fact:
    ends = " (positions end there)" if text and text.is_all else ""
    what = "pair" if plan.job.task == PREFERENCE else "text"
    each = " a GPU" if plan.cluster.num_devices > 1 else ""
    words = [
        f"{text.number:,} tokens a text{ends}" if text else "",
        f"{texts.number:,} {what}{'s' * (texts.number > 1)} at once{each}" if texts else "",
    ]
    said = " or ".join(filter(None, words))
    if lean != replace(plan.strategy, micro_batch=1):
        how = _lean_words(lean)
        return Fact("at most", f"{said}, with {how}", f"{said}, {how.partition(', loss')[0]}", said)
    more = "; --ac full may hold more" if lean.activation_checkpointing != "full" else ""
    return Fact("at most", f"{said}, with these settings{more}", f"{said}{more}", said)


def _leaner(plan: Plan, *, is_ours: bool) -> tuple[Strategy, ...]:
    """Return what takes less for a text or more of them, then the plan's own with one text."""
    own = replace(plan.strategy, micro_batch=1)
    return (leanest(plan.job, plan.strategy), own) if is_ours else (own,)


def _shorter(found: Solution, *, is_ours: bool) -> tuple[Fact, ...]:
    """Say how long a text the same GPUs do hold, where one of the length asked for is not sure."""
    plan = found.plan
    if plan.estimate is None or plan.job.task == "module" or _lacks_devices(plan):
        return ()
    ways = {way: _lean_words(way) for way in _leaner(plan, is_ours=is_ours)[:-1]}
    ways = {plan.strategy: "these settings"} | ways
    texts = {words: longest(plan.job, plan.cluster, way, least=0) for way, words in ways.items()}
    told = [
        f"{text.number:,} tokens a text, with {words}"
        for words, text in texts.items()
        if text is not None and LEAST_OF_A_TEXT <= text.number / plan.job.seq_len < 1
    ]
    return (Fact("at most", "; ".join(told)),) if told else ()


def _lean_words(lean: Strategy) -> str:
    chunks = f", loss in {lean.loss_chunks} chunks" if lean.loss_chunks > 1 else ""
    return f"all layers checkpointed{chunks}"


def _tighter(found: Solution, lacking: int) -> tuple[Fact, ...]:
    """Say what would be given up first if there were less memory, or for what lacks room."""
    best = found.record.rows[0]
    if not best.step_s:
        return ()
    most = best.peak_bytes - max(lacking, LEAST_SAVED * best.peak_bytes)
    rows = [row for row in found.frontier if row.peak_bytes <= most and row.step_s]
    if not rows:
        return ()
    first = min(rows, key=lambda row: row.step_s or 0.0)
    saved = format_bytes(best.peak_bytes - first.peak_bytes)
    slower = (first.step_s or 0.0) / best.step_s - 1
    cost = "as fast" if slower < LEAST_SLOWER else f"{_percent(slower)} slower"
    label = "safer" if lacking else "if tight"
    return (Fact(label, f"{_what_differs(found, first)}: {saved} less, {cost}"),)


def _percent(share: float) -> str:
    """Print a share, with a decimal below 10 %."""
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"  # noqa: PLR2004


def _what_differs(found: Solution, row: Considered) -> str:
    plan = found.plan
    words = differing_words(plan.job, plan.strategy, row.strategy)
    more = len(words) - NUM_NAMED
    rest = f" and {more} setting{'s' * (more > 1)} more" if more > 0 else ""
    return ", ".join(words[:NUM_NAMED]) + rest


def _tried(found: Solution) -> tuple[Fact, ...]:
    record = found.record
    how = "were predicted" if record.rung == "predicted" else "were simulated"
    return (
        *_needed(found),
        Fact("tried", f"{record.num_considered:,} settings {how}, {_none(found)}"),
        *_untried(found),
    )


def _none(found: Solution) -> str:
    """Say why none fits: what is alive is too much, or what the allocator makes of it."""
    num = found.record.num_fitting
    if not num:
        return "none fits"
    which = "the one that does" if num == 1 else f"the {num:,} that do"
    return f"none fits: {which} by live tensors fail in the allocator's replay"


def _needed(found: Solution) -> tuple[Fact, ...]:
    """Say how many devices there have to be at least, where there are fewer."""
    plan = found.plan
    if not _lacks_devices(plan):
        return ()
    least, device = least_devices(plan), plan.cluster.device
    stay = format_bytes(staying_bytes(plan.job, device.kernels))
    words = f"at least {least:,} of them for {stay} of parameters and optimizer state"
    return (Fact("needs", words),)


def _lacks_devices(plan: Plan) -> bool:
    """Whether more devices are needed for what stays alone, with nothing on the host."""
    return plan.strategy.offload == "none" and least_devices(plan) > plan.cluster.num_devices


def _left_out(found: Solution) -> tuple[Fact, ...]:
    """Say what each device would hold if all shared what stays, which this version does not run.

    Nothing where that is run, or has no room either: then it is the GPUs that have too little.
    """
    plan, num = found.plan, found.plan.cluster.num_devices
    if num == 1 or gathers(plan.strategy) or plan.estimate is None:
        return ()
    parts = plan.strategy.pp * plan.strategy.tp  # of the model, of which the items are one
    items = plan.estimate.items
    reference = parts * sum(each.num_bytes for each in items if each.name == REFERENCE)
    stays = held_bytes(plan.job, plan.cluster.device.kernels) + reference
    if stays / num > limit_bytes(plan):
        return ()
    shared = replace(plan.strategy, zero=3, dp_shard=num, dp_replicate=1, micro_batch=1)
    try:
        check_strategy(plan.job, shared)
    except UnsupportedError as error:
        of_it = f", {format_bytes(reference / num)} of it the reference model" if reference else ""
        each = f"{format_bytes(stays / num)} and activations on each GPU{of_it}"
        why = str(error).partition(" is not run")[0]
        words = f"this version does not shard it ({why}); a trainer that does would hold {each}"
        return (Fact("not run", words),)
    except InputError:
        return ()  # the batch is not for so many
    return ()


def _untried(found: Solution) -> tuple[Fact, ...]:
    """Say what was not looked at where a search ended early."""
    left = found.record.untried
    if left is None:
        return ()
    return (Fact("not tried", f"{left.num_strategies:,} more settings: {left.why}"),)


def allowed_facts(allowed: Sequence[WayOut]) -> tuple[Fact, ...]:
    """Say together what would fit if the job's owner allowed it, at which predicted speed."""
    last = allowed[-1]
    units = [f" {way.unit}" if way is last and way.rate else "" for way in allowed]
    told = (", ".join(filter(None, (way.peak.partition(" of ")[0], way.rate))) for way in allowed)
    ways = [
        f"{way.flags}{f' ({said}{unit})' if said else ''}"
        for way, said, unit in zip(allowed, told, units, strict=True)
    ]
    verb = "predicted; each changes" if len(ways) > 1 else "changes"
    words = f"{', '.join(ways)}, {verb} what is learnt"
    return (Fact("or allow", words),)
