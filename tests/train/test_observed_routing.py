"""The routing that a run has seen, and what is said where it is of another plan."""

import msgspec
import pytest

from brimful.errors import InputError
from brimful.models.config import read_config
from brimful.techniques.parallel.routing import Routing
from brimful.techniques.runnable import check_strategy
from brimful.train.observed_routing import heaviest_ranks, observed
from brimful.train.refit import of_size
from brimful.values.plan import PLAN_SCHEMA, Plan, write_yaml
from brimful.values.run_files import METRICS_FILE, PLAN_FILE, ExpertRow
from brimful.values.strategy import world_size
from other_decoders import CONFIGS
from samples import make_cluster, make_job, make_strategy


def plan_of(**ways):
    config = {**CONFIGS["mixtral"], "num_hidden_layers": 4}
    job = make_job(
        model=read_config("tiny-mixtral", {"model_type": "mixtral", **config}), global_batch=8
    )
    strategy = check_strategy(job, make_strategy(micro_batch=1, **ways))
    return job, strategy


def written(folder, job, strategy, *received):
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=of_size(make_cluster(), world_size(strategy)),
        strategy=strategy,
        estimate=None,
    )
    write_yaml(plan, folder / PLAN_FILE)
    rows = [
        ExpertRow(step=10 * n, num_steps=10, blocks=(0, 1), load=((1,), (1,)), num_choices=2,
                  received=each)
        for n, each in enumerate(received, start=1)
    ]  # fmt: skip
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (folder / METRICS_FILE).write_bytes(lines)
    return folder


def test_each_process_keeps_its_heaviest_passes(tmp_path):
    job, strategy = plan_of(ep=2, dp_shard=2, zero=3)
    light, heavy = (((3,), (4,)), ((9,), (1,))), (((5,), (5,)), ((2,), (2,)))
    seen = observed(written(tmp_path, job, strategy, light, heavy), job, strategy)
    assert seen == {
        0: Routing(received=((5,), (5,))),
        1: Routing(received=((9,), (1,))),
    }
    assert heaviest_ranks(seen, strategy) == [0, 1]  # most in all blocks, and in one


def test_every_place_of_a_row_is_asked(tmp_path):
    ways = {"ep": 2, "dp_shard": 2, "zero": 3, "pp": 2, "accumulate": "hold"}
    job, strategy = plan_of(**ways)
    rows = (((9,), ()), ((1,), ()), ((), (2,)), ((), (3,)))
    seen = observed(written(tmp_path, job, strategy, rows), job, strategy)
    assert heaviest_ranks(seen, strategy) == [0, 3]


def test_rows_of_another_plan_are_refused(tmp_path):
    job, strategy = plan_of(ep=2, dp_shard=2, zero=3)
    folder = written(tmp_path, job, strategy, (((3,), (4,)), ((9,), (1,))))
    other = msgspec.structs.replace(strategy, zero=2)
    with pytest.raises(InputError, match=r"was a run of another plan.*simulate its own"):
        observed(folder, job, other)
    longer = msgspec.structs.replace(job, seq_len=job.seq_len // 2)
    with pytest.raises(InputError, match="was a run of another plan"):
        observed(folder, longer, strategy)


def test_rows_of_fewer_processes_are_left_out(tmp_path):
    job, strategy = plan_of(ep=2, dp_shard=2, zero=3)
    one = (((3,), (4,)),)
    folder = written(tmp_path, job, strategy, one)
    with pytest.raises(InputError, match="has not seen how tokens come to experts"):
        observed(folder, job, strategy)


def test_a_folder_without_a_plan_is_no_run(tmp_path):
    job, strategy = plan_of(ep=2, dp_shard=2, zero=3)
    with pytest.raises(InputError, match=r"holds no plan\.yaml"):
        observed(tmp_path, job, strategy)
