"""Refusals before work: what flags alone tell is said before torch, data or weights are touched."""

import argparse

from brimful.cli import defaults, resolved
from brimful.hardware.probe import check_present


def refuse_early(args: argparse.Namespace, *, searched: bool) -> None:
    """Refuse what cannot run here, as far as job, cluster and strategy say it.

    Nothing heavy is imported for it. A run that goes on is compared with what it began with, later.

    ``args``: the flags of a verb that runs a job for real. ``searched``: whether the verb looks for
    what the flags leave open. Raises InputError: something given cannot be used. Raises
    UnsupportedError: this version cannot run it. Raises RunError: it is for a GPU, and this machine
    has none.
    """
    if getattr(args, "resume", False):
        return
    is_plan = resolved.is_plan(args.model)
    is_given = is_plan or not searched or args.engine not in {None, defaults.ENGINE}
    if is_given or args.pp not in {None, 1} or args.ep not in {None, 1}:
        if not searched or is_plan or not _has_lists(args):  # whose refusal names what is searched
            check_present(resolved.asked(args).cluster.device.kernels)
        return
    from brimful.cli.searching import asked

    check_present(asked(args).cluster.device.kernels)


def _has_lists(args: argparse.Namespace) -> bool:
    return any(isinstance(value, list) for value in vars(args).values())
