"""Plans of flags without a search, and of what a file of another program says."""

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.export.read_source import model_of, read_source
from brimful.values.plan import PLAN_SCHEMA, Plan

MODEL = "qwen2.5-0.5b"
NUM_LAYERS = 24


def plan_of(*flags, model=MODEL):
    """Return what the flags say of a job and a strategy, and the defaults of the rest."""
    return _asked(parser_of("estimate").parse_args([model, *map(str, flags)]))


def plan_from(path, *flags, num_devices=1, model=None):
    """Return what a file says, and the defaults of what it does not."""
    named = model or model_of(path)
    args = parser_of("estimate").parse_args([named, *map(str, flags)])
    for each in read_source(path, num_devices=num_devices, num_layers=NUM_LAYERS).taken:
        value = each.value[0] if isinstance(each.value, list) else each.value
        setattr(args, each.flag, value)
    return _asked(args)


def _asked(args):
    job, cluster, strategy = asked(args)
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)
