"""The stages of a pipeline, one behind the other in one process, are the whole model."""

import msgspec
import pytest
import torch

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import Batch
from brimful.build.model import materialize
from brimful.build.parallel.stages import Absent, cut_stages, held_dtype
from brimful.build.pipelined import _fitted, _in_calls
from brimful.build.program import Program
from brimful.build.tasks import task_of
from brimful.errors import UnsupportedError
from brimful.techniques.parallel.stages import STAGED_DECODERS, device_of_stage
from brimful.values.strategy import split_of
from build.plain import ragged_batch
from other_decoders import make_decoder_job
from samples import make_adapter, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
WAYS = {"1f1b": 1, "interleaved": 2, "zbv": 2}


def job_of(kind, **changes):
    if kind == "llama":
        return make_job(model=make_model(num_hidden_layers=5, **changes))
    return make_decoder_job(kind)


def device_program(job, strategy, device):
    """Build what one device of the row has, and what it is called through."""
    skeleton = build_skeleton(job, strategy)
    parts = cut_stages(skeleton, job.model, split_of(strategy), device)
    model = materialize(skeleton, device=CPU, job=job)
    loss = task_of(job).loss(model, job, strategy)
    program = Program(
        job=job, strategy=strategy, root=torch.nn.ModuleList(parts), model=model, loss=loss,
        optimizer=None, scaler=None, device=CPU,
    )  # fmt: skip
    return program, {part.index: part for part in parts}


def run_in_a_row(job, strategy, batch):
    """Return the loss, and every device's program, whose gradients are there."""
    split = split_of(strategy)
    devices = [device_program(job, strategy, device) for device in range(split.pp)]
    stage, handed = task_of(job).stage, None
    for index in range(split.num_stages):
        program, parts = devices[device_of_stage(split, index)]
        part = parts[index]
        part.share = lambda part, hidden, _fields, of=program: stage(of, part, hidden, batch, 7)
        handed = part(handed)
    handed.backward()
    return handed.detach(), [program for program, _ in devices]


def batch_of(job):
    tokens, labels = ragged_batch(job, step=1)
    return Batch(tokens, labels)


def whole_model(job, strategy, batch):
    alone = build_program(job, msgspec.structs.replace(
        strategy, pp=1, pp_schedule="1f1b", stages_per_device=1), CPU)  # fmt: skip
    loss = alone.root(alone, batch, 7)
    loss.backward()
    return loss.detach(), dict(alone.model.named_parameters())


@pytest.mark.few
@pytest.mark.parametrize("schedule", WAYS)
@pytest.mark.parametrize("kind", sorted(STAGED_DECODERS))
def test_stages_one_behind_the_other_are_the_model(kind, schedule):
    job = job_of(kind)
    pp = 2 if WAYS[schedule] == 1 or job.model.num_layers >= 4 else 1
    if pp == 1:
        pytest.skip("too few blocks for two stages on each of two devices")
    strategy = make_strategy(
        pp=pp, pp_schedule=schedule, stages_per_device=WAYS[schedule], micro_batch=job.global_batch
    )
    batch = batch_of(job)
    loss, programs = run_in_a_row(job, strategy, batch)
    whole_loss, whole = whole_model(job, strategy, batch)
    torch.testing.assert_close(loss, whole_loss, rtol=1e-6, atol=0)
    seen = set()
    for program in programs:
        for name, parameter in program.model.named_parameters():
            assert torch.equal(parameter, whole[name])
            torch.testing.assert_close(parameter.grad, whole[name].grad, rtol=1e-4, atol=1e-7)
            seen.add(name)
    assert seen == set(whole)


@pytest.mark.parametrize("schedule", WAYS)
def test_tied_ends_begin_alike(schedule):
    job = job_of("llama", tie_word_embeddings=True)
    strategy = make_strategy(pp=2, pp_schedule=schedule, stages_per_device=WAYS[schedule])
    programs = [device_program(job, strategy, device)[0] for device in range(2)]
    first = programs[0].model.get_input_embeddings()
    last = programs[0 if schedule == "zbv" else 1].model.get_output_embeddings()
    alone = build_program(job, make_strategy(), CPU).model.get_input_embeddings().weight
    assert torch.equal(first.weight, alone)
    assert torch.equal(last.weight, alone)


def adapted(**changes):
    adapter = make_adapter(**changes)
    model = make_model(
        num_hidden_layers=4, tie_word_embeddings="lm_head" in adapter.trained_modules
    )
    return make_job(model=model, method="lora", adapter=adapter)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"trained_modules": ("lm_head",)}, "which are one weight"),
        ({"targets": ("3.self_attn.q_proj",)}, "stage 0 of 2 would train nothing"),
        ({"targets": ("0.self_attn.q_proj",)}, "stage 1 of 2 would train nothing"),
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("device", [0, 1])
def test_adapters_that_leave_devices_unlike_are_refused_on_all(device, changes, fact):
    with pytest.raises(UnsupportedError, match=fact):
        device_program(adapted(**changes), make_strategy(pp=2), device)


def test_a_trained_copy_says_in_which_type_states_are_handed_on():
    job = msgspec.structs.replace(
        adapted(trained_modules=("embed_tokens",), base="bf16"), precision="bf16-mixed"
    )
    found = {
        held_dtype(device_program(job, make_strategy(pp=2), device)[0].model.get_input_embeddings())
        for device in (0, 1)
    }
    assert found == {torch.float32}


def test_rows_for_added_tokens_are_those_of_one_device(tmp_path):
    given = make_job(model=make_model(num_hidden_layers=4, tie_word_embeddings=False))
    build_program(given, make_strategy(), CPU).model.save_pretrained(tmp_path)
    model = make_model(num_hidden_layers=4, tie_word_embeddings=False, vocab_size=120)
    job = make_job(model=model, weights=str(tmp_path))
    whole = dict(build_program(job, make_strategy(), CPU).model.named_parameters())
    for device in (0, 1):
        program, _ = device_program(job, make_strategy(pp=2), device)
        for name, parameter in program.model.named_parameters():
            assert torch.equal(parameter, whole[name]), name


def test_what_other_devices_have_is_forgotten_after_the_first_weights():
    job = job_of("llama")
    program, _ = device_program(job, make_strategy(pp=2), 1)
    away = [module for module in program.model.modules() if isinstance(module, Absent)]
    assert len(away) == 4  # the embedding and three of five blocks
    assert all(module.original is None for module in away)
    assert not any(parameter.is_meta for parameter in program.model.parameters())


def test_micro_batches_are_filled_up_to_one_shape():
    batch = Batch(torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64))
    fitted = _fitted(batch, 2, 5)
    assert fitted.inputs.tolist() == [[1, 1, 1, 0, 0], [0] * 5]
    assert fitted.labels.tolist() == [[1, 1, 1, -100, -100], [-100] * 5]
    calls = list(_in_calls([batch] * 3, 2))
    assert [len(call) for call in calls] == [2, 2]
    assert (calls[1][1].labels == -100).all()
