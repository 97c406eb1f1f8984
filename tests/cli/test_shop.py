"""``brimful shop`` through the command line: tables, JSON, page, prices, wrong input."""

import json
import re
import subprocess
import sys
from argparse import Namespace

import pytest
from msgspec.structs import replace

from brimful.cli.goods import kinds_from
from brimful.cli.main import main
from brimful.cli.shop import in_dollars
from brimful.cost.money import read_prices, shipped_prices
from brimful.errors import InputError
from brimful.hardware.datasheets import datasheets
from brimful.report.shop_plot import MARKS, axis, mark
from brimful.search.shop.own import Ownership
from brimful.show.shop_owned import paid_back
from brimful.units import parse_duration, parse_electricity, parse_money, parse_rate

ASKED = ["shop", "tinyllama-1.1b", "--tokens", "10M", "--global-batch", "8", "--seq-len", "1024",
         "--gpus", "rtx-4090,a100-40gb", "--max-gpus", "2"]  # fmt: skip


def run(capsys, *more, asked=ASKED):
    code = main([*asked, *more])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_tables(capsys):
    code, out, _ = run(
        capsys, "--deadline", "3d", "--own", "rtx-3090", "--electricity", "0.3usd/kWh", "-v"
    )
    assert code == 0
    assert out.startswith("ANSWER ")
    for title in ("Frontier (predicted)", "Your own (predicted)", "Own rtx-3090",
                  "What the numbers say", "Kinds of GPU", "It rests on"):  # fmt: skip
        assert title in out
    assert "the cheapest that meets the deadline of 3 days" in out
    assert "what the GPU costs is not in it" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_what_somebody_has_a_price_of_is_compared_whoever_made_it(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("MI300X: 1.85\nH100 SXM: 2.29\n", "utf-8")
    assert "mi300x" not in kinds_from(None, shipped_prices("secure"))
    kinds = kinds_from(None, read_prices(own, "secure"))
    assert {"mi300x", "h100-80gb", "a100-80gb"} <= set(kinds)


def test_a_kind_that_was_named_and_cannot_be_compared_is_told(capsys):
    asked = [*ASKED[:-3], "t4,l4", *ASKED[-2:]]
    told = " ".join(run(capsys, "--precision", "bf16-mixed", asked=asked)[1].split())
    assert " t4: has no bf16; --precision fp16-mixed asks what it takes" in told
    assert "by kind" in told


def test_a_kind_without_bf16_runs_what_plan_would_take_there(capsys):
    asked = [
        *ASKED[:-3],
        "t4,l4",
        "--max-gpus",
        "2",
        "--own",
        "p40",
        "--electricity",
        "1usd/kWh",
        "--attention",
        "sdpa",
    ]
    _, out, _ = run(capsys, asked=asked)
    told = " ".join(out.split())
    assert "fp16-mixed on t4; fp32 on p40, without units for bf16-mixed" in told
    assert re.search(r"yours p40: [\d.]+ h and [\d.]+ USD of electricity alone", told)
    assert re.search(r"by kind 2xl4: .*; 2xt4: ", told)


def test_what_cannot_be_met_says_by_how_much_and_ends_with_1(capsys):
    code, out, _ = run(capsys, "--deadline", "1min")
    assert code == 1
    assert out.startswith("NO ")
    assert "done in 60 s" in out
    assert "over the deadline" in " ".join(out.split())
    assert run(capsys, "--money-budget", "0.001usd")[0] == 1


def test_what_it_costs_is_said_in_ones_own_currency(capsys):
    budget = ("--money-budget", "10gbp", "--currency", "gbp=1.25")
    told, same = run(capsys, *budget)[1], run(capsys, "--money-budget", "12.5usd")[1]
    assert "1 GBP is 1.25 USD" in told
    assert "for at most 10.00 GBP" in " ".join(told.split())
    taken = [re.search(rf"take .*? and ([\d.]+) {name}", " ".join(words.split()))[1]
             for name, words in (("GBP", told), ("USD", same))]  # fmt: skip
    assert float(taken[0]) == pytest.approx(float(taken[1]) / 1.25, abs=0.01)
    assert re.findall(r"([\d.]+) USD", told) == ["1.25", taken[1]]  # the rate, and the whole
    assert " GBP" not in same


def test_a_second_kind_an_hours_price_and_dollars_beside_ones_own_currency(capsys):
    asked = [*ASKED[:-4], "--max-gpus", "1", "--deadline", "3d", "--currency", "eur=1.16"]
    told = " ".join(run(capsys, asked=asked)[1].split())
    taken = re.search(r"take (\S+): [\d.]+ \w+ and ([\d.]+) EUR at ([\d.]+) EUR a GPU-hour", told)
    usd = re.search(r"1 EUR is 1.16 USD: (\S+) for ([\d.]+) USD, [\d.]+ a", told)
    assert usd[1] == taken[1]
    assert float(usd[2]) == pytest.approx(1.16 * float(taken[2]), abs=0.02)
    second = re.search(r"else (\S+): ", told)[1]
    assert second != taken[1]


def test_what_machines_are_with_another_processor_is_said(capsys):
    asked = [*ASKED[:-4], "--gpus", "gh200", "--max-gpus", "1"]
    told = " ".join(run(capsys, asked=asked)[1].split())
    assert "machines with an ARM processor" in told


def test_what_is_bought_is_paid_back_against_the_offer_beside_it(capsys):
    terms = (
        "--buy",
        "700usd",
        "--years",
        "2",
        "--hours-per-month",
        "40",
        "--electricity",
        "0.3usd/kWh",
    )
    told = " ".join(run(capsys, "--own", "rtx-3090", *terms)[1].split())
    if "paid back against that after" in told:
        months = re.search(r"hours, ([\d,]+) months of such use, of 24 that it serves", told)[1]
        assert int(months.replace(",", "")) > 0
    else:
        assert "never paid back: its electricity alone costs no less" in told


def test_months_until_paid_back_are_runs_of_what_they_save():
    """700 / (9 - 5) are 175 runs of 48 hours, which are 210 months at 40 hours each."""
    own = Ownership(
        gpus="rtx-3090", predicted_days=2.0, predicted_energy_kwh=1.0,
        predicted_electricity_usd=5.0, buy_usd=700.0, buy_source="", usd_per_gpu_hour_rented=0.5,
        usd_per_gpu_hour_used=0.1, break_even_hours=1750.0, break_even_months=43.75,
        predicted_run_usd_amortised=40.0, hours_per_month=40.0, months=24.0,
    )  # fmt: skip
    assert paid_back(own, 9.0) == (
        "; paid back against that after 8,400 hours, 210 months of such use, of 24 that it serves"
    )
    assert "never" in paid_back(own, 5.0)
    whenever = replace(own, hours_per_month=None, months=None)
    assert paid_back(whenever, 9.0) == (
        "; that is paid back after 8,400 hours, which is 175 such runs"
    )


def test_a_run_of_which_nobody_says_how_long_it_is_is_of_a_billion_tokens(capsys):
    asked = [word for word in ASKED if word not in {"--tokens", "10M"}]
    code, out, _ = run(capsys, asked=asked)
    assert code == 0
    assert "ANSWER    full training of tinyllama-1.1b, 1B tokens" in " ".join(out.split("\n"))
    assert "a run of a billion tokens" in " ".join(out.split())


def test_the_fewest_of_no_wish_are_those_with_the_least_memory(capsys):
    """Both hold it alone, and the larger one costs less."""
    asked = ["shop", "tinyllama-1.1b", "--seq-len", "1024", "--method", "lora", "--max-gpus", "2"]
    kinds = ("--kinds", "rtx-3060,rtx-a5000")
    told = run(capsys, *kinds, asked=asked)[1]
    assert re.search(r"fewest +rtx-3060: |by kind.*rtx-3060", told, re.DOTALL)


def test_where_the_slow_end_misses_what_was_asked_something_safer_is_named(capsys):
    told = " ".join(run(capsys, "--deadline", "12min")[1].split())
    assert "take 2xrtx-4090: " in told
    assert "risk the slow end of the range misses what was asked" in told
    assert "safer 2xa100-40gb: 5." in told
    found = json.loads(run(capsys, "--deadline", "12min", "--json")[1])["market"]
    every = [*found["options"], *found["likely"]]
    safer = next(each for each in every if each["gpus"] == "2xa100-40gb")
    assert safer["predicted_days_band"]["high"] * 24 * 60 <= 12
    told = " ".join(run(capsys, "--deadline", "25min")[1].split())
    assert "risk " not in told
    alone = [*ASKED[:-3], "rtx-4090", "--max-gpus", "2"]
    told = " ".join(run(capsys, "--deadline", "25min", asked=alone)[1].split())
    assert re.search(r"fewest rtx-4090: .*?, which may miss what was asked \(range", told)
    late = run(capsys, "--deadline", "1d")[1]
    assert not re.search(r"risk |safer |may miss", late)


@pytest.mark.parametrize(("more", "named"), [(1.02, "2xa100-40gb"), (1.05, "4xrtx-4090")])
def test_fewer_gpus_that_cost_little_more_are_the_safer_ones(capsys, tmp_path, more, named):
    asked = ("--deadline", "12min", "--max-gpus", "4")
    found = json.loads(run(capsys, *asked, "--json")[1])["market"]
    usd = {each["gpus"]: each["predicted_usd"] for each in found["options"]}
    price = shipped_prices().gpus["a100-40gb"].usd_per_gpu_hour
    price *= more * usd["4xrtx-4090"] / usd["2xa100-40gb"]
    path = tmp_path / "prices.yaml"
    path.write_text(f"a100-40gb: {{rent: {price}}}\n")
    told = " ".join(run(capsys, *asked, "--prices", str(path))[1].split())
    assert f"safer {named}: " in told


def test_a_kind_without_a_price_says_what_it_would_do(capsys):
    asked = [*ASKED[:-3], "rtx-4090,mi250x", "--max-gpus", "2"]
    told = " ".join(run(capsys, "--deadline", "30min", asked=asked)[1].split())
    assert re.search(r"no price mi250x: give one by --prices; mi250x takes [\d.]+ min", told)
    told = " ".join(run(capsys, "--deadline", "1min", asked=asked)[1].split())
    assert "no price mi250x: give one by --prices prices" in told


def test_machines_of_one_gpu_each_and_the_network_between_them_are_named(capsys):
    asked = ["shop", "llama-3.2-1b", "--tokens", "20B", "--gpus", "gh200", "--deadline", "1d"]
    code, out, _ = run(capsys, asked=asked)
    told = " ".join(out.split())
    assert code == 0
    nodes = re.search(r"take (\d+)x1xgh200: ", told)[1]
    assert f"machines {nodes} of one GPU each" in told
    assert "adamw, network ib-ndr-400 (all: -v)" in told
    assert len(out.splitlines()) <= 12


def test_a_budget_alone_says_the_cheapest_the_fastest_and_no_deadline(capsys):
    code, out, _ = run(capsys, "--money-budget", "3usd", "--max-gpus", "8")
    subject, told = out.splitlines()[0], " ".join(out.split())
    assert code == 0
    assert " h " not in subject, "a deadline that nobody gave"
    assert "within the cheapest of what takes 24 h at most; --deadline says another" in told
    assert re.search(r"fastest 8xa100-40gb: [\d.]+ s and [\d.]+ USD", told)


def test_json(capsys):
    code, out, err = run(capsys, "--json", "--money-budget", "100usd")
    told = json.loads(out)
    assert (code, err, told["schema"]) == (0, "", "brimful.shop/1")
    best = told["choice"]["best"]
    assert best in told["market"]["frontier"]
    assert best["predicted_usd"] <= 100
    assert told["job"]["global_batch"] == 8
    assert {each["kind"] for each in told["market"]["alone"]} == {"rtx-4090", "a100-40gb"}
    assert told["limits"] == {"deadline_s": None, "budget_usd": 100.0}


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_plot_and_page(capsys, tmp_path, suffix):
    path = tmp_path / f"shop.{suffix}"
    code, out, _ = run(capsys, "--deadline", "3d", "--money-budget", "90usd", "-o", str(path))
    assert code == 0
    assert f"written to {path}" in out
    text = path.read_text()
    for part in ("<svg", "deadline 3 days", "budget 90.00 USD", 'class="frontier"', "rtx-4090"):
        assert part in text
    assert "<script" not in text
    assert 'src="http' not in text
    if suffix == "html":
        assert "What the numbers say" in text


def test_prices_of_the_user(capsys, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("rtx-4090: {rent: 0.5, buy: 1000}\na100-40gb: {buy: 9000}\n")
    prices = read_prices(path)
    assert prices.gpus["rtx-4090"].usd_per_gpu_hour == 0.5
    assert prices.bought["a100-40gb"].usd == 9000
    assert prices.gpus["a100-40gb"] == shipped_prices().gpus["a100-40gb"]
    code, out, _ = run(
        capsys, "-v", "--prices", str(path), "--own", "rtx-4090", "--electricity", "0.3"
    )
    assert code == 0
    assert "1,000 USD" in out
    assert (
        "break-even   after 2,59" in out or "break-even   after 2,60" in out
    )  # 1000 / (.5 - .115)


def test_a_run_on_ones_own_gpu_has_its_part_of_the_price_in_it(capsys):
    own = ("--own", "rtx-3090", "--buy", "1000usd", "--electricity", "0.3usd/kWh")
    code, out, _ = run(capsys, *own, "--hours-per-month", "60", "--years", "2", "--json")
    assert code == 0
    (told,) = json.loads(out)["owned"]
    hours = told["predicted_days"] * 24
    part = 1000 * hours / (2 * 12 * 60)
    whole = part + told["predicted_electricity_usd"]
    assert told["predicted_run_usd_amortised"] == pytest.approx(whole)
    assert told["break_even_months"] == pytest.approx(told["break_even_hours"] / 60)
    code, out, _ = run(capsys, *own, "--hours-per-month", "60", "--years", "2")
    assert "its part of the GPU's price with it" in " ".join(out.split())
    code, out, _ = run(
        capsys, *own, "--own", "2xrtx-3090", "--hours-per-month", "60", "--years", "2"
    )
    assert "its part of the GPUs' price (2 x 1,000 USD) with it" in " ".join(out.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rtx-4090: {rant: 1}", "has rant and takes rent, buy or both"),
        ("rtx-4090: {}", "has nothing and takes rent"),
        ("rtx-4090: {buy: -1}", "costs -1 and a price is a number of dollars to buy one"),
    ],
)
def test_prices_that_are_wrong(capsys, tmp_path, text, said):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    code, _, err = run(capsys, "--prices", str(path))
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpus", "h1000"], "h1000"),
        (["--gpus", ","], "names no GPU"),
        (["--gpus", "a100,8xa100"], "8xa100 says how many, and of a100-80gb they are to be found"),
        (["--own", "local"], "name the GPU itself"),
        (["--own", "mi100"], "gfx908"),
        (["--buy", "1600usd"], "give --own too"),
        (["--deadline", "soon"], "'soon' is not a duration; write it like 48h or 3d"),
        (["--deadline", "0h"], "leaves nothing"),
        (["--money-budget", "5 euros"], "'5 euros' is not a price; write it like 500usd"),
        (["--money-budget", "5eur"], "--money-budget is in EUR and prices are in USD; say what"),
        (["--currency", "1.08"], "is no rate; write eur=1.08"),
        (["--electricity", "0.3usd/h"], "is no price of electricity; write 0.30usd/kWh"),
        (["--years", "0"], "--years 0 is not over 0"),
        (["--max-gpus", "0"], "--max-gpus"),
        (["-o", "plot.png"], "must end in .html or .svg"),
        (["--task", "seq2seq"], "seq2seq"),
    ],
)
def test_input_that_is_wrong(capsys, more, said):
    code, _, err = run(capsys, *more)
    assert code == 2
    assert said in err
    sentences = [line for line in err.splitlines() if not line.startswith("comparing GPUs")]
    assert len(sentences) == 1, "beside what is told of progress, where a machine is slow"


def test_two_kinds_that_are_owned_are_compared_before_what_is_rented(capsys):
    kinds = "rtx-3090,rtx-4090"
    ask = f"shop tinyllama-1.1b --tokens 10M --kinds {kinds} --own {kinds} --seq-len 1024"
    assert main([*ask.split(), "--global-batch", "8"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    parts = ("yours rtx-4090", "yours rtx-3090", r"to rent (\d+x)?rtx")
    places = [re.search(part, told).start() for part in parts]
    assert places == sorted(places)
    assert re.search(r"compared rtx-4090 [\d.]+ x as fast", told)
    assert "brimful plan tinyllama-1.1b --gpus rtx-4090 with" in told


@pytest.mark.parametrize(
    ("buy", "subject", "taken"),
    [
        ("90000usd", r"the cheapest is to rent (\S+)", r"to rent (\S+):"),
        ("1usd", r"the cheapest is yours, (\S+)", r"yours (rtx-[34]090): [^;]*less than to rent"),
    ],
)
def test_to_buy_one_or_another_or_to_rent_is_decided_by_what_they_cost(capsys, buy, subject, taken):
    """It began with what is owned, though renting was cheaper by its own numbers."""
    ask = "shop tinyllama-1.1b --tokens 10M --kinds rtx-3090 --own rtx-3090,rtx-4090 --seq-len 1024"
    terms = f"--buy {buy} --years 3 --hours-per-month 100 --electricity 0.41usd/kWh"
    assert main([*ask.split(), *terms.split(), "--global-batch", "8"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    gpus = re.search(subject, told).group(1)
    assert gpus in re.findall(taken, told)
    assert f"--gpus {gpus} with the same job" in told
    assert told.count(" yours rtx-") == 2


def test_what_is_owned_and_fits_with_its_host_is_said(capsys):
    ask = "shop tinyllama-1.1b --tokens 10M --kinds rtx-4090 --own rtx-3060 --seq-len 1024"
    main([*ask.split(), "--global-batch", "8"])
    assert re.search(r"yours     rtx-3060: .* with [\d.]+ GiB on the host", capsys.readouterr().out)


def test_a_price_of_the_user_has_no_market_beside_it(capsys, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("rtx-4090: 0.30\n")
    ask = "shop tinyllama-1.1b --tokens 10M --kinds rtx-4090 --seq-len 1024 --global-batch 8"
    assert main([*ask.split(), "--prices", str(prices)]) == 0
    assert "--market" not in capsys.readouterr().out


def test_units():
    assert [parse_duration(t) for t in ("48h", "3d", "90 min", "1w")] == [
        172800,
        259200,
        5400,
        604800,
    ]
    amounts = ("500usd", "$500", "500", "1e3USD")
    assert [parse_money(t) for t in amounts] == [(each, "usd") for each in (500, 500, 500, 1000)]
    assert parse_electricity("0.30usd/kWh") == parse_electricity("$0.3") == (0.3, "usd")
    assert parse_electricity("€0.35/kWh") == parse_electricity("0.35eur") == (0.35, "eur")
    assert parse_rate("EUR=1.08") == (1.08, "eur")
    with pytest.raises(InputError, match="3x"):
        parse_duration("3x")


def test_at_least_25_kinds_are_priced_with_a_day_and_a_source():
    cited = [price for price in shipped_prices().gpus.values() if "https://" in price.source]
    assert len(cited) >= 25
    for purchase in shipped_prices().bought.values():
        assert purchase.usd > 0
        assert purchase.date
        assert "https://" in purchase.source


def test_an_axis_holds_its_values_in_order():
    scale = axis([1.0, 10.0, 100.0], 0.0, 90.0)
    low, middle, high = (scale.place(value) for value in (1.0, 10.0, 100.0))
    assert 0 < low < middle < high < 90
    assert middle == pytest.approx((low + high) / 2)
    assert axis([5.0], 0.0, 90.0).place(5.0) == pytest.approx(45)


def test_shopping_imports_no_torch():
    code = (
        "import sys; from brimful.cli.main import main; "
        f"main({[*ASKED, '--json']!r}); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def test_amounts_of_another_currency_are_turned_into_dollars():
    given = Namespace(
        money_budget=parse_money("100eur"), electricity=None, buy=parse_money("50usd"),
        currency=parse_rate("eur=1.1"),
    )  # fmt: skip
    in_dollars(given)
    assert (given.money_budget, given.electricity, given.buy) == (pytest.approx(110), None, 50)


MACHINES = ["shop", "tinyllama-1.1b", "--tokens", "10M", "--seq-len", "1024", "--gpus"]


def machines(capsys, gpus, *more):
    code, out, err = run(capsys, *more, asked=[*MACHINES, gpus])
    return code, " ".join(out.split()), err


def test_machines_are_compared_as_they_are_named(capsys):
    code, out, _ = machines(capsys, "8xa100-40gb,2x8xl4,1xrtx-4090", "--json")
    assert code == 0
    found = json.loads(out)["market"]
    named = {"8xa100-40gb", "2x8xl4", "rtx-4090"}
    assert {each["gpus"] for each in found["by_kind"]} == named
    assert found["num_cells"] == len(named)
    assert set(found["machines"]) == named


def test_two_machines_of_a_kind_are_laid_beside_each_other(capsys):
    _, out, _ = machines(capsys, "8xa100-40gb,4xa100-40gb")
    assert re.search(r"by kind .*4xa100-40gb: .*8xa100-40gb: ", out) or re.search(
        r"by kind .*8xa100-40gb: .*4xa100-40gb: ", out
    )
    assert " x as fast" in out


def test_at_the_price_that_is_told_two_machines_cost_the_same(capsys, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("a100-40gb: 1.00\nrtx-4090: 0.50\n", "utf-8")
    asked = ("8xa100-40gb,8xrtx-4090", "--prices", str(own))
    out = machines(capsys, *asked)[1]
    turn = re.search(r"hour of its GPUs is ([\d.]+) USD", out)
    fast = re.search(r"compared 8x([\w-]+) is", out)[1]
    own.write_text("a100-40gb: 1.00\nrtx-4090: 0.50\n".replace(
        {"a100-40gb": "1.00", "rtx-4090": "0.50"}[fast], turn[1]
    ), "utf-8")  # fmt: skip
    found = json.loads(machines(capsys, *asked, "--json")[1])["market"]["by_kind"]
    costs = [each["predicted_usd"] for each in found]
    assert costs[0] == pytest.approx(costs[1], rel=0.02)


def test_more_gpus_than_a_machine_holds_are_several(capsys):
    assert "2x8xh100-80gb" in machines(capsys, "16xh100")[1]


def test_a_batch_that_nobody_gave_is_one_that_all_machines_can_share(capsys):
    _, out, _ = machines(capsys, "3x8xh100-80gb,16xh100-80gb", "--json")
    assert json.loads(out)["job"]["global_batch"] == 288  # 6 x lcm(24, 16), the first over 256


@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        ("8xh100,h100", (), "8xh100 says how many"),
        ("8xh100", ("--max-gpus", "4"), "8xh100 is 8 GPUs, and --max-gpus 4"),
        ("p5.48xlarge,8xh100", (), "both have h100-80gb, of which one price is compared"),
    ],
)
def test_machines_that_contradict_each_other_are_refused(capsys, gpus, more, words):
    code, _, err = machines(capsys, gpus, *more)
    assert code == 2
    assert words in err


def test_every_architecture_has_a_mark_of_its_own_name():
    """MI300X stood under Pascal in the legend."""
    names = {sheet.architecture for sheet in datasheets().values()}
    told = {name: [mark for mark, _ in MARKS if mark in name] for name in names}
    assert [name for name, marks in told.items() if len(marks) != 1] == []
    assert len({mark(place, 0, 0).partition(" fill")[0] for place in range(len(MARKS))}) == len(
        MARKS
    )
