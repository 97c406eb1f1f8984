"""The fewest GPUs that hold a job's states, where neither time nor activations are known."""

import pytest
from msgspec.structs import replace

from brimful.cost.least import least_bytes
from brimful.cost.trained import num_whole
from brimful.models.config import load_model
from brimful.search.shop.least import least_rooms
from brimful.search.shop.values import Limits
from brimful.show.shop_bound import shop_room_summary
from brimful.show.terminal import summary_lines
from brimful.values.job import Adapter
from samples import make_job

RENTS = {"h200": 3.0, "b200": 5.0, "rtx-4090": 0.5}


def job_of(num_bytes_each=16):
    model = replace(load_model("qwen2.5-0.5b"), model_type="of-another-time", name="large-moe")
    precision = {16: "bf16-mixed", 8: "bf16"}[num_bytes_each]
    return make_job(model=model, precision=precision)


def test_the_fewest_of_each_kind_hold_the_states_and_one_less_does_not():
    job, count = job_of(), 284_000_000_000
    states = least_bytes(job, count).total
    assert states == 16 * count
    rooms = least_rooms(job, count, RENTS, most=1024)
    assert [room.usd_per_hour for room in rooms] == sorted(room.usd_per_hour for room in rooms)
    found = {room.kind: room for room in rooms}
    assert found["h200"].num_gpus == 31
    assert found["h200"].usd_per_hour == pytest.approx(93.0)
    assert found["b200"].num_gpus < 31 < found["rtx-4090"].num_gpus
    half = {room.kind: room.num_gpus for room in least_rooms(job_of(8), count, RENTS, most=1024)}
    assert half["h200"] == 16
    assert {room.kind for room in least_rooms(job, count, RENTS, most=31)} == {"h200", "b200"}


def test_the_bound_is_said_in_twelve_lines_with_prices_an_hour():
    job, count = job_of(), 284_000_000_000
    rooms = least_rooms(job, count, RENTS, most=1024)
    least = least_bytes(job, count)
    lines = summary_lines(shop_room_summary(job, count, least, rooms, Limits(None, None)))
    told = " ".join(" ".join(map(str, lines)).split())
    assert told.startswith("UNKNOWN full training of large-moe")
    assert "bound 4.13 TiB of parameters, gradients and optimizer state, 16 bytes of each" in told
    assert "31xh200: 93.00 USD an hour" in told
    assert "how long it takes" in told
    assert len(lines) <= 9
    none = shop_room_summary(job, count, least, [], Limits(None, None))
    assert none.verdict == "NO"


def test_modules_that_train_whole_are_counted_as_what_trains():
    """An embedding and an output layer beside adapters are copies of what stays frozen."""
    model = load_model("llama-3.1-8b")
    adapter = Adapter(
        rank=64, alpha=32.0, targets=("all-linear",), trained_modules=(), dtype="same",
        base="bf16", upcast="none", input_requires_grad=False,
    )  # fmt: skip
    plain = make_job(model=model, method="lora", adapter=adapter, precision="bf16-mixed")
    both = replace(adapter, trained_modules=("embed_tokens", "lm_head"))
    job = make_job(model=model, method="lora", adapter=both, precision="bf16-mixed")
    count = 2 * 128_256 * 4_096
    assert num_whole(job) == count
    assert num_whole(plain) == 0
    more = least_bytes(job, 0).total - least_bytes(plain, 0).total
    assert more == 16 * count
