import msgspec
import pytest

from brimful.errors import InputError
from brimful.models.module import read_factory
from brimful.techniques.exact import TABLE, exactness
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Adapter, LossScale
from samples import make_job, make_model, make_strategy

WHOLE = {
    "micro_batch": 4,
    "activation_checkpointing": "none",
    "loss_chunks": 1,
    "attention": "eager",
    "reference": "resident",
    "optimizer_in_backward": 0,
    "fused_kernels": "none",
    "data_parallel": 1,
}
CUT = {
    "micro_batch": 1,
    "activation_checkpointing": "selective",
    "loss_chunks": 7,
    "attention": "sdpa",
    "reference": "precomputed",
    "optimizer_in_backward": 1,
    "fused_kernels": "liger",
    "data_parallel": 8,
}
MODULE_JOB = make_job(model=read_factory("mine:net"), task="module", packing="none")
ROUTED = {"output_router_logits": True, "router_aux_loss_coef": 0.01}
INT8 = Adapter(
    rank=4, alpha=8.0, targets=("all-linear",), trained_modules=(), dtype="same",
    base="llm-int8", upcast="none", input_requires_grad=False,
)  # fmt: skip


def routed_job(model_type, **fields):
    model = msgspec.structs.replace(
        make_model(), model_type=model_type, hf_config={**ROUTED, **fields}
    )
    return make_job(model=model)


@pytest.mark.parametrize("field", TABLE)
def test_every_switch_is_exact_for_plain_text_and_says_why(field):
    job = make_job(clip=0.0)
    for value in (WHOLE[field], CUT[field]):
        found = exactness(job, field, value)
        assert found.is_exact
        assert found.reason == TABLE[field].why


@pytest.mark.parametrize("field", TABLE)
def test_a_step_that_runs_whole_is_exact_for_every_job(field):
    jobs = [MODULE_JOB, routed_job("mixtral"), make_job(packing="documents"),
            make_job(method="qlora", adapter=INT8)]  # fmt: skip
    assert all(exactness(job, field, WHOLE[field]).is_exact for job in jobs)


@pytest.mark.parametrize("field", ["micro_batch", "data_parallel"])
def test_statistics_over_a_batch_are_not_split(field):
    cut = CUT[field]
    assert exactness(routed_job("mixtral"), field, cut).how == "changes"
    assert exactness(routed_job("switch_transformers"), field, cut).is_exact
    assert exactness(routed_job("mixtral", router_aux_loss_coef=0.0), field, cut).is_exact
    assert exactness(MODULE_JOB, field, cut).how == "built"
    assert exactness(make_job(method="qlora", adapter=INT8), field, cut).how == "rounding"


def test_rows_that_ran_with_others_round_otherwise_in_int8():
    job = make_job(method="qlora", adapter=INT8)
    assert exactness(job, "reference", "precomputed").how == "rounding"
    assert exactness(job, "reference", "adapters-off").is_exact


def test_a_module_of_ones_own_may_remember_forward_passes():
    assert exactness(MODULE_JOB, "activation_checkpointing", "full").how == "built"


@pytest.mark.parametrize("attention", ["sdpa", "efficient", "cudnn", "flex", "varlen", "eager"])
def test_packed_documents_stay_apart_in_every_kernel_but_flash(attention):
    job = make_job(packing="documents")
    assert exactness(job, "attention", attention).is_exact
    assert exactness(job, "attention", "flash").how == "changes"
    assert exactness(make_job(packing="none"), "attention", "flash").is_exact


def test_what_needs_a_mask_of_its_own_is_not_run_without_one():
    decoder = make_job(task="sequence-classification", packing="none")
    bert = msgspec.structs.replace(decoder.model, model_type="bert")
    encoder = msgspec.structs.replace(decoder, model=bert)
    seq2seq = make_job(task="seq2seq", packing="none")
    for attention in ("flash", "flex", "varlen"):
        assert exactness(encoder, "attention", attention).how == "changes"
        assert exactness(seq2seq, "attention", attention).how == "changes"
        assert exactness(decoder, "attention", attention).is_exact
    for attention in ("efficient", "cudnn"):
        assert exactness(encoder, "attention", attention).is_exact
        assert exactness(seq2seq, "attention", attention).how == "changes"
    assert exactness(seq2seq, "attention", "sdpa").is_exact


def test_an_update_in_the_backward_pass_needs_no_more_than_its_own_gradient():
    scale = LossScale(
        initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    )
    plain, field = make_job(clip=0.0), "optimizer_in_backward"
    assert exactness(plain, field, 1).is_exact
    assert "2 micro-batches" in exactness(plain, field, 2).reason
    assert "clip=1.0" in exactness(make_job(clip=1.0), field, 1).reason
    scaled = make_job(clip=0.0, precision="fp16-mixed", loss_scale=scale)
    assert exactness(scaled, field, 1).how == "changes"
    assert exactness(scaled, field, 0).is_exact


def test_a_strategy_that_would_change_the_mathematics_is_refused_with_the_reason():
    with pytest.raises(InputError, match=r"attention=flash would change .* takes no mask"):
        check_strategy(make_job(packing="documents"), make_strategy(attention="flash"))
    with pytest.raises(InputError, match=r"micro_batch=2 would change .* product of means"):
        check_strategy(routed_job("mixtral"), make_strategy(micro_batch=2))
    job = make_job(method="qlora", adapter=INT8)
    assert check_strategy(job, make_strategy()) == make_strategy()
