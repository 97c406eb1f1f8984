"""Optimizer state that is made before the first step is what the first update would have made."""

import pytest
import torch

from brimful.build import first_state, phases, step
from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.program import own_optimizer, state_tensors
from brimful.build.step import train_step
from brimful.techniques.optimizers import OPTIMIZERS
from build.first_state_programs import compare
from processes import run_group
from samples import make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
WIDE = {"hidden_size": 64, "num_hidden_layers": 2}
"""Matrices wide enough for 8-bit moments, vectors too short for them."""
PAIRS = [(recipe, rule) for rule in OPTIMIZERS for recipe in ("fp32", "bf16", "bf16-master")]


@pytest.fixture(autouse=True)
def uncompiled():
    """Let low-bit updates run as they are written: what they start from is all that is asked."""
    with torch.compiler.set_stance("force_eager"):
        yield


def job_of(recipe, rule, **changes):
    return make_job(model=make_model(**WIDE), precision=recipe, optimizer=rule, **changes)


def batches_of(job):
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, job.model.vocab_size, (4, job.seq_len), generator=generator)
    return [Batch(rows, rows) for rows in ids.split(2)]


def ran(job, num_steps=3):
    """Return parameters, and state by parameter, after steps."""
    program = build_program(job, make_strategy(), CPU)
    batches = batches_of(job)
    for _ in range(num_steps):
        num_targets = count_targets(batches)
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-2)
    parameters = list(program.model.parameters())
    optimizer = own_optimizer(program)
    return parameters, [optimizer.state.get(p, {}) for p in parameters]


@pytest.mark.few(4)
@pytest.mark.parametrize(("recipe", "rule"), PAIRS)
def test_no_bit_differs_from_state_that_is_made_lazily(recipe, rule, monkeypatch):
    job = job_of(recipe, rule)
    eager = ran(job)
    monkeypatch.setattr(step, "make_state", lambda _program: None)
    lazy = ran(job)
    for mine, theirs in zip(eager[0], lazy[0], strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(eager[1], lazy[1], strict=True):
        assert list(mine) == list(theirs)
        for key, value in theirs.items():
            assert mine[key].dtype == value.dtype
            assert mine[key].stride() == value.stride()
            assert torch.equal(mine[key], value)


@pytest.mark.few
@pytest.mark.parametrize(("recipe", "rule"), PAIRS)
def test_all_of_it_is_there_before_the_first_forward_pass(recipe, rule):
    program = build_program(job_of(recipe, rule), make_strategy(), CPU)
    batches, seen = batches_of(program.job), []

    def listen(name, begins, whose):
        if (name, begins) in {("forward", True), ("optimizer", False)}:
            seen.append((name, {id(x) for x in state_tensors(whose)}))

    with phases.listening(listen):
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-2)
    assert seen[0][0] == "forward"
    assert len(seen[0][1]) >= len(list(program.model.parameters()))
    assert seen[0][1] == seen[-1][1]  # the update makes none and replaces none


def test_state_that_cannot_be_made_whole_is_not_there_at_all(monkeypatch):
    program = build_program(job_of("fp32", "adamw"), make_strategy(), CPU)
    original, calls = torch.zeros_like, []

    def short(*args, **kwargs):
        calls.append(args)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("no more")
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "zeros_like", short)
    with pytest.raises(torch.OutOfMemoryError):
        first_state.make_state(program)
    assert not program.optimizer.state
    first_state.make_state(program)
    assert len(program.optimizer.state) == len(list(program.model.parameters()))


def test_sgd_without_momentum_keeps_nothing_and_says_nothing():
    program = build_program(job_of("fp32", "sgd", beta1=0.0), make_strategy(), CPU)
    seen = []
    with phases.listening(lambda *event: seen.append(event)):
        first_state.make_state(program)
    assert not seen
    assert not program.optimizer.state


def test_devices_that_keep_a_part_each_make_the_same_part(tmp_path):
    cases = [(1, "adamw"), (1, "sgd"), (3, "adamw"), (3, "adamw-foreach")]
    run_group(compare, 2, 2, tmp_path / "store", cases)
