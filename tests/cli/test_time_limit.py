"""A script's time: what is answered where it is over, by a clock that stands still."""

import json
import re

import pytest

from brimful.pretend import time_limit

pytestmark = pytest.mark.torch

SCRIPT = """
import torch

models = [torch.nn.Linear(256, 256).cuda() for _ in range({optimizers})]
optimizers = [torch.optim.AdamW(each.parameters()) for each in models]

def step():
    for model, optimizer in zip(models, optimizers):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

for number in range({steps}):
    try:
        step()
    except BaseException as error:
        {then}
"""


@pytest.fixture
def script(tmp_path):
    def written(*, then="raise", steps=50, optimizers=1):
        path = tmp_path / "loop.py"
        path.write_text(SCRIPT.format(then=then, steps=steps, optimizers=optimizers))
        return str(path)

    return written


@pytest.fixture
def clock(monkeypatch):
    def stands_at(*seconds):
        told = iter(seconds)
        monkeypatch.setattr(time_limit.time, "monotonic", lambda: next(told, seconds[-1]))

    return stands_at


@pytest.mark.parametrize("optimizers", [1, 3])
def test_a_script_is_ended_after_two_steps_of_every_optimizer(script, brimful, clock, optimizers):
    clock(0, 50)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script(optimizers=optimizers))
    told = json.loads(said.out)
    assert (said.code, told["fits"], told["cut"]["num_steps"]) == (0, True, 2)
    assert told["cut"]["phase"].startswith(f"step {2 * optimizers}")


def test_what_follows_is_said_not_to_have_been_run(script, brimful, clock):
    clock(0, 50)
    said = brimful("pretend", "--gpu", "l4", "--", script())
    assert said.out.startswith("FITS")
    told = " ".join(said.out.split())
    assert re.search(r"after 2 steps in 50 s[;,] [a-z ]+ not run[:;] --budget 100", told)


def test_a_script_of_no_whole_steps_is_unknown_when_its_time_is_over_twice(script, brimful, clock):
    clock(0, *[1] * 60, 95)
    said = brimful("pretend", "--gpu", "l4", "--", script())
    told = " ".join(said.out.split())
    assert said.code == 124
    assert said.out.startswith("UNKNOWN")
    assert "simulated, at least" in told
    assert "after 95 s" in told
    clock(0, *[1] * 60, 95)
    again = brimful("pretend", "--gpu", "l4", "--json", "--", script())
    assert json.loads(again.out)["fits"] is None


def test_an_error_that_a_script_makes_of_the_end_is_the_end(script, brimful, clock):
    clock(0, 50)
    own = script(then="raise ValueError('lost') from None")
    said = brimful("pretend", "--gpu", "l4", "--json", "--", own)
    assert json.loads(said.out)["cut"]["num_steps"] == 2


def test_a_script_that_catches_everything_runs_to_its_end(script, brimful, clock):
    clock(0, 50)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script(then="pass", steps=400))
    assert json.loads(said.out)["cut"] is None


def test_a_script_that_ends_by_itself_was_not_cut(script, brimful, clock):
    clock(0, 1)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script())
    assert json.loads(said.out)["cut"] is None


def test_largest_takes_no_run_that_was_cut_short_for_one_that_fits(script, brimful, clock):
    clock(0, *[1] * 10, 95)
    argued = ("pretend", "--gpu", "l4", "--largest", "batch", "--", script(), "--batch", "4")
    said = brimful(*argued)
    assert said.code == 124
    assert "surely fits" not in said.out


# -- steps that are alike --

GROWING = """
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
names, kept = [], []
for number in range(400):
    out = model(torch.ones(1024, 1024, device="cuda"))
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(out.detach().float() * 2)
    names.append(number)
"""
"""4 MiB more with every step: a tensor that is detached lies on the card all the same."""


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(time_limit, "ALIKE_S", 0.0)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("optimizers", "steps"), [(1, 4), (3, 5)])
def test_a_script_is_ended_after_a_few_steps_that_were_alike(script, brimful, optimizers, steps):
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script(optimizers=optimizers))
    told = json.loads(said.out)
    assert (said.code, told["fits"]) == (0, True)
    assert (told["cut"]["num_steps"], told["cut"]["num_alike"]) == (steps, 3)


@pytest.mark.usefixtures("soon")
def test_a_budget_is_a_limit_and_the_whole_is_asked_for(script, brimful):
    argued = ("pretend", "--gpu", "l4", "--json", "--budget", "60")
    limited = json.loads(brimful(*argued, "--", script()).out)["cut"]
    assert (limited["num_steps"], limited["num_alike"]) == (4, 3)
    assert json.loads(brimful(*argued, "--whole", "--", script()).out)["cut"] is None


@pytest.mark.usefixtures("soon")
def test_steps_of_several_lengths_are_not_alike(script, brimful, tmp_path):
    text = (tmp_path / script()).read_text()
    path = tmp_path / "lengths.py"
    path.write_text(text.replace("torch.ones(8,", "torch.ones(8 + number % 2,"))
    said = brimful("pretend", "--gpu", "l4", "--json", "--", str(path))
    assert json.loads(said.out)["cut"] is None


@pytest.mark.usefixtures("soon")
def test_what_grows_is_told_by_proportion_with_the_list_that_holds_it(brimful, tmp_path):
    path = tmp_path / "grows.py"
    path.write_text(GROWING)
    argued = ("pretend", "--gpu", "l4", "--memory-budget", "200MiB")
    whole = brimful(*argued, "--whole", "--json", "--", str(path))
    failed_in = json.loads(whole.out)["at_capacity"]["failure"]["tensor"]["phase"]
    said = brimful(*argued, "--", str(path))
    told = " ".join(said.out.split())
    assert (said.code, said.out.split()[0]) == (1, "NO")
    assert "grows.py:12 (kept) keeps" in told
    full = json.loads(brimful(*argued, "--json", "--", str(path)).out)["grows"]["full_step"]
    assert abs(full - int(failed_in.split()[1])) <= 1
    assert f"in about step {full} of a real run the card is full" in told


@pytest.mark.usefixtures("soon")
def test_what_grows_slowly_is_no_fit_and_no_certain_failure(brimful, tmp_path):
    path = tmp_path / "grows.py"
    path.write_text(GROWING)
    said = brimful("pretend", "--gpu", "l4", "--", str(path))
    assert (said.code, said.out.split()[0]) == (124, "UNKNOWN")


@pytest.mark.usefixtures("soon")
def test_other_values_are_run_for_two_steps_where_the_given_one_was_cut(brimful, tmp_path):
    text = SCRIPT.format(then="raise", steps=50, optimizers=1).replace("8, 256", "batch, 256")
    text = text.replace("import torch", "import sys, torch; batch = int(sys.argv[2])")
    path = tmp_path / "loop.py"
    path.write_text(text)
    argued = ("--memory-budget", "40MiB", "--json", "--", str(path), "--batch", "1000")
    said = brimful("pretend", "--gpu", "l4", "--largest", "batch", *argued)
    told = json.loads(said.out)
    assert told["largest"]["value"] > 1000
    assert told["cut"]["num_steps"] == 2


# -- what follows steps that are alike --

OVER_DATA = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(torch.ones(400, 256), batch_size=4)
others = DataLoader(torch.ones(40, 256), batch_size=4)

def cycle(loader):
    while True:
        yield from loader

num = 0
for epoch in range({epochs}):
    for batch in {loop}:
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        num += 1
    print("epoch", epoch, num)
assert num == 400 or {takes_fewer}
kept = [model(torch.ones(2**16, 256, device="cuda")).detach() for _ in others]
print("after", len(kept))
"""


@pytest.fixture
def over_data(tmp_path, brimful):
    def ran(*flags, epochs=1, loop="loader", takes_fewer=True):
        path = tmp_path / "loop.py"
        path.write_text(OVER_DATA.format(epochs=epochs, loop=loop, takes_fewer=takes_fewer))
        return brimful("pretend", "--gpu", "l4", *flags, "--", str(path))

    return ran


@pytest.mark.usefixtures("soon")
def test_what_follows_a_loop_over_data_is_run(over_data):
    said = over_data()
    assert "epoch 0 4" in said.out
    assert "after 10" in said.out  # the data of other loops is not over
    told = " ".join(said.out.split())
    assert "data after 4 steps" in told
    assert "passed over" in told
    whole = json.loads(over_data("--whole", "--json").out)
    short = json.loads(over_data("--json").out)
    assert short["simulated_peak_allocated_bytes"] == whole["simulated_peak_allocated_bytes"]
    assert (short["cut"]["is_passed"], whole["cut"]) == (True, None)


def test_what_follows_is_run_too_when_time_is_over(over_data, clock):
    clock(0, *[1] * 60, 50)
    said = over_data()
    assert "after 10" in said.out
    assert "passed over" in " ".join(said.out.split())


@pytest.mark.usefixtures("soon")
def test_each_further_epoch_has_one_more_batch(over_data):
    said = over_data(epochs=3)
    assert "epoch 1 5" in said.out
    assert "epoch 2 6" in said.out


@pytest.mark.usefixtures("soon")
def test_who_begins_again_with_its_data_is_ended(over_data):
    told = json.loads(over_data("--json", loop="cycle(loader)").out)
    assert not told["cut"]["is_passed"]
    assert told["cut"]["num_steps"] <= 10


@pytest.mark.usefixtures("soon")
def test_an_error_of_fewer_rows_is_none(over_data):
    said = over_data("--json", takes_fewer=False)
    told = json.loads(said.out)
    assert (said.code, told["cut"]["is_passed"], told["cut"]["num_alike"]) == (0, False, 3)


@pytest.mark.usefixtures("soon")
def test_what_has_no_room_after_the_loop_is_a_no(over_data):
    said = over_data("--memory-budget", "300MiB", "--json")
    assert json.loads(said.out)["fits"] is False


# -- what is said at first --


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(time_limit, "_FIRST_S", 0.0)
    monkeypatch.setattr(time_limit, "_CPU_EVERY_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_what_a_whole_step_took_is_said_before_the_rest_is_run(script, brimful):
    said = brimful("pretend", "--gpu", "l4", "--memory-budget", "100MiB", "--", script())
    [first] = [line for line in said.err.splitlines() if "at first" in line]
    assert "MiB of tensors, of 100.00 MiB, in step 1" in first


@pytest.mark.usefixtures("at_once")
def test_a_card_that_is_full_is_said_where_it_is(script, brimful):
    said = brimful("pretend", "--gpu", "l4", "--memory-budget", "1MiB", "--", script())
    firsts = [line for line in said.err.splitlines() if "at first" in line]
    assert said.code == 1
    assert "at first: NO, more than 1.00 MiB of tensors in step 1" in firsts[-1]
    assert len(firsts) == 1
