"""A program whose blocks mostly stand for themselves has the tape of one that runs them all."""

import msgspec
import pytest

from brimful.models.config import read_config
from brimful.pretend import block_runs
from brimful.pretend.blocks import UnlikeBlocksError
from brimful.pretend.stand_ins import Series
from brimful.simulate import run, series
from brimful.simulate.chosen import chosen_of
from brimful.simulate.run import trace
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import data_parallel
from other_decoders import CONFIGS
from samples import make_adapter, make_job, make_model, make_strategy
from tapes import assert_same_tape

pytestmark = pytest.mark.torch

NUM_BLOCKS = 9
HOLD = {"accumulate": "hold"}
DDP, HELD = {"dp_replicate": 2}, {"dp_replicate": 2} | HOLD
ZERO_1, ZERO_2 = ({"dp_shard": 2, "zero": zero} for zero in (1, 2))
ZERO_3 = {"dp_shard": 2, "zero": 3} | HOLD
PIPELINE = {"pp": 2, "micro_batch": 1}
SOME, FULL, SELECTIVE = (
    {"activation_checkpointing": how} for how in ("full:4", "full", "selective")
)
TWICE = {"stages_per_device": 2, "pp_schedule": "interleaved"}


def job_of(model_type="llama", num_blocks=NUM_BLOCKS, *, base=None, **kinds):
    if model_type not in CONFIGS:
        depth = "n_layer" if model_type == "gpt2" else "num_hidden_layers"
        model = make_model(model_type, **{depth: num_blocks})
    else:
        config = {**CONFIGS[model_type], "num_hidden_layers": num_blocks}
        model = read_config(f"tiny-{model_type}", {"model_type": model_type, **config})
    if base is not None:
        kinds |= {"method": "lora", "adapter": msgspec.structs.replace(make_adapter(), base=base)}
    return make_job(model=model, **kinds)


CASES = {
    "masters": (job_of(precision="bf16-master"), SOME),
    "ddp": (job_of(precision="bf16-mixed"), DDP | SOME),
    "ddp, held": (job_of(precision="fp16-mixed"), HELD),
    "zero 1, nf4": (job_of(base="nf4", precision="bf16-mixed"), ZERO_1 | FULL),
    "zero 1, rounds": (job_of("gemma2", 13, precision="bf16"), ZERO_1 | {"attention": "eager"}),
    "ddp, gpt2": (job_of("gpt2", precision="bf16-mixed"), DDP | FULL),
    "ddp, dense first": (job_of("deepseek_v3", precision="bf16"), DDP | FULL),
    "tp, zero 3": (job_of(precision="bf16-mixed"), ZERO_3 | SELECTIVE | {"tp": 2}),
    "pipeline": (job_of(num_blocks=12, precision="bf16-mixed"), PIPELINE | SOME),
    "pipeline, zero 2": (job_of(num_blocks=14, precision="bf16"), PIPELINE | ZERO_2 | HOLD | FULL),
    "pipeline, tp": (job_of(num_blocks=24, precision="bf16-mixed"), PIPELINE | TWICE | {"tp": 2}),
}


def traced(job, strategy, *, stands_in):
    chosen = chosen_of(job, strategy, 0)
    how = {"imitate": "cuda", "rank": 0, "count_messages": True, "chosen": chosen}
    return trace(job, strategy, stands_in=stands_in, **how)


@pytest.fixture
def stood(monkeypatch):
    """Count the calls of blocks that stood for themselves."""
    calls = []
    whole = block_runs.StandIn.run

    def counted(self, x):
        calls.append(self)
        return whole(self, x)

    monkeypatch.setattr(block_runs.StandIn, "run", counted)
    return calls


@pytest.mark.few(only=["pipeline"])
@pytest.mark.parametrize("name", CASES)
def test_few_blocks_do_on_the_tape_what_all_do(name, stood):
    job, ways = CASES[name]
    strategy = make_strategy(**ways)
    num_rows = 3 * strategy.micro_batch * data_parallel(strategy) * (4 if strategy.pp > 1 else 1)
    job = msgspec.structs.replace(job, global_batch=num_rows)
    check_strategy(job, strategy)
    few = traced(job, strategy, stands_in=True)
    assert len(stood) >= job.model.num_layers // 2
    whole = traced(job, strategy, stands_in=False)
    assert_same_tape(few.recording, whole.recording)
    assert_same_tape(few.host, whole.host)
    assert few.unknown_ops == whole.unknown_ops


def test_blocks_that_are_not_alike_are_refused_and_all_run(monkeypatch):
    job, strategy = job_of(precision="bf16"), make_strategy(**DDP, **SOME)

    def all_alike(program):
        every = series.series_of(program)
        blocks, paths = ([x for each in every for x in each[i]] for i in (0, 1))
        return [Series(blocks, paths, ["one kind"] * len(blocks))]

    whole = traced(job, strategy, stands_in=False)
    monkeypatch.setattr(run, "series_of", all_alike)
    with pytest.raises(UnlikeBlocksError):
        traced(job, strategy, stands_in=True)
    how = {"imitate": "cuda", "capability": 9.0, "count_messages": True}
    found = run._traced(job, strategy, rank=0, routing=run.BALANCED, **how)
    assert_same_tape(found.recording, whole.recording)
