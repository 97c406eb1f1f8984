"""``brimful rules``: rules of thumb beside our numbers, for one model on one GPU."""

import argparse

import msgspec

from brimful.cli import defaults, flags
from brimful.cli.output import show, show_json

HELP = "check the rules of thumb that circulate on your model and GPU, each with a verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    flags.add_job(parser)
    parser.add_argument(
        "--micro-batch",
        metavar="N",
        type=flags.whole("--micro-batch"),
        help=f"sequences a forward pass, in every check; default {defaults.MICRO_BATCH}",
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    from brimful.rules.subject import Subject, plain_strategy
    from brimful.rules.table import check_rules

    job, cluster = flags.job_from(args), flags.cluster_from(args)
    alone = msgspec.structs.replace(
        cluster, num_devices=1, num_nodes=1, devices_per_node=1, link="", network=""
    )
    micro_batch = defaults.MICRO_BATCH if args.micro_batch is None else args.micro_batch
    subject = Subject(job, alone, plain_strategy(micro_batch))
    rows = tuple(check_rules(subject))
    if args.json:
        content = {"schema": "brimful.rules/1", "job": job, "cluster": alone, "rules": rows}
        show_json({**content, "strategy": subject.strategy})
        return 0
    from brimful.report.rules import rules_tables
    from brimful.report.text import inputs_table

    show(inputs_table(job, alone, subject.strategy), "", rules_tables(rows))
    return 0
