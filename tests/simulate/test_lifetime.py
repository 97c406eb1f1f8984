"""Judging, saving and resuming on the pretend GPU."""

import json

import msgspec
import pytest
import torch

from brimful.simulate import unrolled
from brimful.simulate.lifetime import peak_bytes, simulate_phases, with_phases
from brimful.simulate.run import simulate
from brimful.train.keeping import KEEPING
from brimful.values.results import EVAL, OPTIMIZER_STATE, RESUME, SAVE
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

ALL = (EVAL, SAVE, RESUME)
DEEP = {"num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 300}


def contents(asked, names=ALL):
    return simulate_phases(*asked, KEEPING, names)


def test_few_blocks_unrolled_are_the_whole_model(monkeypatch):
    asked = make_job(model=make_model(**DEEP)), make_cluster(), make_strategy()
    from_few = contents(asked, (EVAL,))
    monkeypatch.setattr(unrolled, "NUM_DEEP", 100)
    whole = contents(asked, (EVAL,))
    assert [(c.phase, c.items) for c in from_few] == [(c.phase, c.items) for c in whole]


@pytest.fixture(scope="module")
def plain_and_contents():
    asked = make_job(), make_cluster(), make_strategy()
    return simulate(*asked), contents(asked, (EVAL, SAVE))


def test_a_simulation_takes_them_in_and_keeps_its_peak(plain_and_contents):
    plain, found = plain_and_contents
    more = with_phases(plain, found)
    assert [phase.phase for phase in more.phases[3:]] == [EVAL, SAVE]
    assert more.simulated_peak_allocated_bytes == plain.simulated_peak_allocated_bytes
    assert more.items == plain.items
    assert [peak_bytes(c) for c in more.contents] == [p.num_bytes for p in more.phases[3:]]


def test_a_phase_above_every_step_becomes_the_peak(plain_and_contents):
    simulation, (judged, _) = plain_and_contents
    tall = judged.items[0].num_bytes + simulation.simulated_peak_allocated_bytes
    item = msgspec.structs.replace(judged.items[0], num_bytes=tall)
    content = msgspec.structs.replace(judged, items=(item,))
    raised = with_phases(simulation, [content])
    assert raised.simulated_peak_allocated_bytes == tall
    assert raised.items == (item,)


def test_what_a_resumed_program_holds_is_what_was_saved():
    job = make_job(precision="bf16-master", optimizer="adamw-foreach")
    random = torch.get_rng_state()
    saved, resumed = contents((job, make_cluster(), make_strategy()), (SAVE, RESUME))
    before, after = (
        {item.name: item.num_bytes for item in content.items} for content in (saved, resumed)
    )
    assert before[OPTIMIZER_STATE] == after[OPTIMIZER_STATE]
    assert peak_bytes(saved) - peak_bytes(resumed) <= 64  # a scalar or two of the step before
    assert type(torch.get_rng_state()) is type(random) is torch.Tensor


@pytest.mark.parametrize(("names", "code"), [("save", 0), ("nonsense", 2)])
def test_the_verb_takes_their_names(capsys, tmp_path, names, code):
    from brimful.cli.main import main

    config = tmp_path / "config.json"
    config.write_text(json.dumps({**make_model().hf_config, "model_type": "llama"}))
    asked = ("--seq-len", "16", "--precision", "fp32", "--phases", names, "--json")
    assert main(["simulate", str(config), *asked]) == code
    said = capsys.readouterr()
    if code:
        assert "nonsense" in said.err
        return
    told = json.loads(said.out)
    wanted = ALL if names == "all" else tuple(names.split(","))
    assert tuple(content["phase"] for content in told["contents"]) == wanted
    assert {phase["phase"] for phase in told["phases"]} >= set(wanted)
