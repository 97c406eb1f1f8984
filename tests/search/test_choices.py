"""Lists of values, the Pareto set, and the cheapest part of a cluster."""

import msgspec
import pytest

from brimful.errors import InputError
from brimful.search.cheapest import smaller, solve_cheapest
from brimful.search.pins import Pins
from brimful.search.solve import solve, tabulate
from brimful.search.space import grids, plainest_strategy, possible
from brimful.search.table import pareto
from samples import make_cluster, make_job, make_model

FREE = Pins()


def many(num_devices, **changes):
    return msgspec.structs.replace(
        make_cluster("cuda", name="h100-80gb", capability=9.0, **changes),
        name="h100-80gb",
        num_devices=num_devices,
        devices_per_node=num_devices,
        link="nvlink-4",
    )


def table_of(job, cluster, pins=FREE):
    space = grids(job, pins, attention="sdpa", cluster=cluster)
    return tabulate(job, cluster, "sdpa", space)


def test_a_list_is_searched_as_its_values_are_one_by_one():
    job, cluster = make_job(global_batch=8), make_cluster("cuda")
    first, second = Pins(micro_batch=2), Pins(micro_batch=4)
    both = solve(job, cluster, first, attention="sdpa", objective="time", also=(second,))
    alone = [
        solve(job, cluster, pins, attention="sdpa", objective="time") for pins in (first, second)
    ]
    assert both.record.num_considered == sum(found.record.num_considered for found in alone)
    best = min(alone, key=lambda found: found.plan.estimate.predicted_step_s)
    assert both.plan.strategy == best.plan.strategy


def test_what_of_a_list_cannot_run_is_left_out():
    choices = [Pins(micro_batch=3), Pins(micro_batch=2)]
    assert possible(make_job(), choices, 1) == choices[1:]
    with pytest.raises(InputError, match="micro_batch=3 does not divide global_batch=4"):
        possible(make_job(), choices[:1], 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("num_devices", [1, 4])
def test_nothing_beats_the_pareto_set(num_devices):
    cluster = many(num_devices) if num_devices > 1 else make_cluster("cuda")
    table = table_of(make_job(global_batch=8), cluster)
    rows = pareto(table)
    kept = set(rows.tolist())
    points = list(zip(table.step_s, table.peak_bytes, strict=True))
    for row in range(len(points)):
        beaten = any(
            other[0] <= points[row][0] and other[1] <= points[row][1] and other != points[row]
            for other, fits in zip(points, table.fits, strict=True)
            if fits
        )
        if row in kept:
            assert table.fits[row]
            assert not beaten
        elif table.fits[row]:
            assert beaten or points[row] in [points[k] for k in kept]
    assert list(table.step_s[rows]) == sorted(table.step_s[rows])


def test_a_step_that_updates_early_takes_all_of_its_rows_at_once():
    job, early = make_job(global_batch=4, clip=0.0), FREE._replace(optimizer_in_backward=True)
    strategy, sizes = plainest_strategy(job, early, "sdpa")
    assert (strategy.micro_batch, sizes) == (4, [4])
    assert plainest_strategy(job, FREE, "sdpa")[1] == [1, 2, 4]


def test_the_parts_of_a_cluster():
    cluster = msgspec.structs.replace(many(8), num_devices=32, num_nodes=4, network="ib-ndr-400")
    parts = [(c.num_nodes, c.devices_per_node) for c in smaller(cluster)]
    assert parts == [(4, 8), (2, 8), (1, 8), (1, 4), (1, 2), (1, 1)]
    assert all(c.num_devices == c.num_nodes * c.devices_per_node for c in smaller(cluster))


def test_the_cheapest_takes_the_fewest_device_seconds():
    job, cluster = make_job(model=make_model(num_hidden_layers=2), global_batch=4), many(4)
    whole = FREE._replace(loss_chunks=1)  # so that each of several searches is short
    solution = solve_cheapest(job, cluster, whole, attention="sdpa")
    found = solution.plan
    every = [
        part.num_devices
        * solve(job, part, whole, attention="sdpa", objective="time").plan.estimate.predicted_step_s
        for part in smaller(cluster)
    ]
    taken = found.cluster.num_devices * found.estimate.predicted_step_s
    assert taken == pytest.approx(min(every), rel=0.01)
    others = [part.num_devices for part in smaller(cluster) if part != found.cluster]
    assert [plan.cluster.num_devices for plan in solution.counts] == others
