"""What ``shop`` traces: first what tells a first fit of each kind, then all that it compares."""

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import resolved
from brimful.cli.least import with_room
from brimful.cli.on_demand import traced_or_untold
from brimful.cli.shop_least import cheapest_kinds, tell_shop_least
from brimful.cost.formula import untraced
from brimful.cost.programs import kernels_of
from brimful.errors import UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.search.attending import beside_usual
from brimful.search.pins import Pins, pinned_strategy
from brimful.search.space import needs
from brimful.show.shop import NUM_NAMED, found_words
from brimful.text.terminal import say
from brimful.units import shown_in

if TYPE_CHECKING:
    from brimful.cost.own_programs import Need
    from brimful.hardware.cluster import Cluster
    from brimful.search.shop.values import Recipe, Request


def traced_for_shop(args: argparse.Namespace, request: "Request") -> str:
    """Trace what the job needs that does not ship, for the kernels that most kinds of GPUs run.

    What runs there in a recipe of its own is traced where somebody named or has it. Returns why no
    formula covers it still; empty where one does.
    """
    clusters = [load_cluster(name, memory_limit_bytes=None) for name in request.kinds]
    asked = [*clusters, *request.owned]
    recipes = [request.on(each.name) for each in asked]
    usual = max(recipes, key=recipes.count)
    untold = [_traced_usual(args, request, usual, _running(request, usual, asked))]
    if request.others:
        _trace_others(args, request, clusters)
    named = asked if args.kinds is not None else request.owned
    others = (each for i, each in enumerate(recipes) if each not in [*recipes[:i], usual])
    untold += [
        traced_or_untold(args, _asked(each, there), _needed(each, there))
        for each in others
        if (there := _running(request, each, named))
    ]
    return min(untold, key=len)


def _running(
    request: "Request", recipe: "Recipe", clusters: "Sequence[Cluster]"
) -> "list[Cluster]":
    return [each for each in clusters if request.on(each.name) == recipe]


def _asked(recipe: "Recipe", clusters: "Sequence[Cluster]") -> resolved.Asked:
    """Return what stands for a recipe on what runs it: a GPU with the kernels that most have."""
    ((most, _),) = Counter(kernels_of(each.device) for each in clusters).most_common(1)
    one = next(each for each in clusters if kernels_of(each.device) == most)
    num_devices = 2 if all(need.gathers for need in _needed(recipe, clusters)) else 1
    return resolved.Asked(recipe.job, one, pinned_strategy(Pins(), recipe.attention, num_devices))


def _traced_usual(
    args: argparse.Namespace,
    request: "Request",
    recipe: "Recipe",
    clusters: "Sequence[Cluster]",
) -> str:
    """Trace what most kinds run, and tell meanwhile what is known."""
    every, asked = _needed(recipe, clusters), _asked(recipe, clusters)
    trace = partial(traced_or_untold, args, asked)

    def tell() -> None:
        if not request.machines:  # of these nobody asks for fewer
            tell_shop_least(args, recipe.job, request.kinds, request.prices)

    if untraced(recipe.job, asked.strategy, asked.cluster.device, every):
        if trace(_first_of(every, "plain"), tell):
            return trace(every)
        told = _tell_first(args, request, ())
        trace(_first_of(every, "plain", "checkpointed"))
        _tell_first(args, request, told)
    return trace(every)


def _needed(recipe: "Recipe", clusters: "Sequence[Cluster]") -> "list[Need]":
    """List what a market asks for, but for whole copies where no GPU has room for them."""
    job, attention = recipe
    several = [msgspec.structs.replace(one, num_devices=one.num_devices + 1) for one in clusters]
    every = needs(job, [Pins(ep=1)], attention, several[0])
    strategy = pinned_strategy(Pins(), attention, 2)
    each = (with_room(resolved.Asked(job, one, strategy), every) for one in several)
    return max(each, key=len)


def _first_of(every: "list[Need]", *bodies: str) -> "list[Need]":
    """Choose what a first fit needs: the plainest programs, of what is spread most."""
    spread = [need for need in every if need.gathers]
    return [need for need in spread if need.body in bodies and need.recompute == "full"]


def _tell_first(args: argparse.Namespace, request: "Request", told: Sequence[str]) -> Sequence[str]:
    """Say of each kind the fewest that hold the job in a plain way, and return what was said.

    ``told``: what was said before, which is not said again.
    """
    from brimful.search.shop.first import first_fits

    if args.json:
        return ()
    if len(request.kinds) > NUM_NAMED:
        kinds = cheapest_kinds(args, request.job, request.kinds, request.prices)
        request = request._replace(kinds=kinds)
    with shown_in(args.currency):
        words = [found_words(each) for each in first_fits(request)]
    for each in words:
        if each not in told:
            say(f"at most, by a first plan that fits: {each}", file=sys.stderr, flush=True)
    return words


def _trace_others(
    args: argparse.Namespace, request: "Request", clusters: "Sequence[Cluster]"
) -> None:
    """Trace what attends without scores on kinds of GPU where the usual kernel writes them out."""
    for one in clusters:
        job, usual = request.on(one.name)
        several = msgspec.structs.replace(one, num_devices=one.num_devices + 1)
        for attention in beside_usual(job, usual, one.device):
            asked = resolved.Asked(job, one, pinned_strategy(Pins(), attention))
            with contextlib.suppress(UnsupportedError):
                traced_or_untold(args, asked, needs(job, [Pins(ep=1)], attention, several))
