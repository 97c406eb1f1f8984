"""What a run costs: hours, energy, dollars, and prices that are wrong."""

import datetime as dt

import msgspec
import pytest

from brimful.cli.main import main
from brimful.cost.money import (
    DRAW_SHARE,
    MARKETS,
    PUE,
    cost_of,
    listed_prices,
    on_machine,
    read_prices,
    shipped_prices,
)
from brimful.errors import FileFormatError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import load_cluster
from brimful.hardware.instances import clouds
from brimful.models.config import load_model
from brimful.values.job import plain_job

JOB = plain_job(load_model("gpt2"), seq_len=1000, global_batch=10, num_steps=3600)


def cluster(name="8xh100-80gb"):
    return load_cluster(name, memory_limit_bytes=None)


def test_a_run_of_known_length():
    cost = cost_of(JOB, cluster(), 2.0, shipped_prices())
    price = shipped_prices().gpus["h100-80gb"].usd_per_gpu_hour
    assert cost.num_tokens == 36_000_000
    assert (cost.hours, cost.gpu_hours) == (2, 16)
    assert cost.usd == pytest.approx(16 * price)
    assert cost.energy_kwh == pytest.approx(16 * 0.7 * DRAW_SHARE * PUE)


def test_what_is_unknown_stays_unknown():
    slow = cost_of(JOB, cluster(), None, shipped_prices())
    assert slow.hours is slow.gpu_hours is slow.energy_kwh is slow.usd is None
    rare = cost_of(JOB, cluster("h20"), 2.0, shipped_prices())
    assert rare.usd is None
    assert "price of h20 unknown; give one with --prices FILE" in rare.assumptions
    assert rare.gpu_hours == 2
    assert cost_of(JOB, cluster("gh200"), 2.0, shipped_prices()).energy_kwh is None


def test_prices_that_ship_are_of_gpus_and_have_a_day_and_a_source():
    prices = shipped_prices()
    assert set(prices.gpus) <= set(datasheets())
    for price in prices.gpus.values():
        assert price.usd_per_gpu_hour > 0
        day = dt.date.fromisoformat(price.date)
        assert day <= dt.date.fromisoformat(prices.date)
        assert "https://" in price.source or "from memory, unchecked" in price.source


def test_prices_of_a_clouds_machines_are_of_its_gpus_and_have_a_source():
    machines = {name for cloud in clouds() for name in cloud.gpus}
    assert set(listed_prices()) <= machines
    for price in listed_prices().values():
        assert 0.3 < price.usd_per_gpu_hour < 20
        assert "https://" in price.source
        assert not price.date or dt.date.fromisoformat(price.date) <= dt.date(2026, 12, 31)
    here = on_machine(shipped_prices(), "P5.48xlarge").gpus["h100-80gb"]
    assert (here.usd_per_gpu_hour, here.whose) == (6.88, "AWS's list, us-east-1, 2026-11-09")
    assert on_machine(shipped_prices(), "p5e.48xlarge") == shipped_prices()


def test_prices_are_of_one_market_at_a_time():
    secure, community = (shipped_prices(market).gpus for market in MARKETS)
    assert secure["rtx-4090"].usd_per_gpu_hour > community["rtx-4090"].usd_per_gpu_hour
    assert {price.market for price in secure.values()} == {"secure"}
    assert {price.market for price in community.values()} == {"community"}
    assert shipped_prices().gpus == {**community, **secure}
    cost = cost_of(JOB, cluster(), 2.0, shipped_prices("community"))
    assert (cost.whose, cost.usd_per_gpu_hour) == (
        "community",
        community["h100-80gb"].usd_per_gpu_hour,
    )


def test_the_users_prices_replace_those_that_ship(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("h100-80gb: 1.25\nh20: 3\nlocal: 0\n")
    prices = read_prices(path)
    assert cost_of(JOB, cluster(), 2.0, prices).usd == 16 * 1.25
    assert cost_of(JOB, cluster("h20"), 2.0, prices).usd == 6
    assert prices.gpus["b200"] == shipped_prices().gpus["b200"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1000: 2", "'h1000' is no GPU"),
        ("h100-80gb: cheap", "'cheap' and a price is a number"),
        ("h100-80gb: -1", "-1 and a price"),
        ("h100-80gb: true", "True and a price"),
        ("h100-80gb: .inf", "inf and a price"),
        ("h100-80gb: .nan", "nan and a price"),
        ("- 1", "holds no prices"),
        ("", "holds no prices"),
    ],
)
def test_prices_that_are_wrong(tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=said):
        read_prices(path)


ASKED = ["estimate", "gpt2", "--gpus", "h100-80gb", "--seq-len", "1024"]


def test_estimate_shows_the_cost_of_a_run_whose_length_is_given(capsys):
    assert main([*ASKED, "--tokens", "1B", "-v"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FITS ")
    assert "GPU-hours" in text
    assert "USD per GPU-hour" in text
    assert main([*ASKED, "-v"]) == 0
    assert "GPU-hours" not in capsys.readouterr().out


def test_estimate_takes_the_users_prices_as_json(tmp_path, capsys):
    path = tmp_path / "prices.json"
    path.write_text('{"h100-80gb": 2}')
    assert main([*ASKED, "--steps", "3600", "--prices", str(path), "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["cost"]["gpu_hours"] == pytest.approx(found["predicted_step_s"])
    assert found["cost"]["usd"] == pytest.approx(2 * found["cost"]["gpu_hours"])
    assert 0 < found["mfu"] == found["hfu"] < 1
    assert found["tokens_per_s"] == pytest.approx(1024 / found["predicted_step_s"])


def test_estimate_refuses_prices_that_are_not_there(capsys):
    assert main([*ASKED, "--prices", "/nowhere/prices.yaml"]) == 2
    assert "/nowhere/prices.yaml cannot be read" in capsys.readouterr().err
