"""The losses of routers beside their formulas written out on a model's own logits."""

import msgspec
import pytest
import torch

from brimful.errors import InputError, UnsupportedError
from brimful.techniques.exact import exactness
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job
from other_decoders import CONFIGS, EAGER_ONLY
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch
AUX, Z = 0.3, 0.02
KINDS = ("mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v2", "gpt_oss")


def job_of(kind, **changes):
    from brimful.models.config import read_config

    model = read_config(f"tiny-{kind}", {"model_type": kind, **CONFIGS[kind]})
    job = make_job(model=model, precision="fp32", global_batch=2, seq_len=16)
    return check_job(msgspec.structs.replace(job, **changes))


def gradients_of(job, *, micro_batch=2, segments=None, beside=None):
    """Return the gradients of one step, with what ``beside`` adds, and the loss that is shown."""
    from brimful.build.assemble import build_program
    from brimful.build.batch import Batch, count_targets
    from brimful.build.step import micro_step

    attention = "eager" if job.model.model_type in EAGER_ONLY else "sdpa"
    strategy = check_strategy(job, make_strategy(micro_batch=micro_batch, attention=attention))
    program = build_program(job, strategy, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, job.model.vocab_size, (2, job.seq_len), generator=generator)
    whole = Batch(ids, ids.roll(-1, 1), segments)
    num_targets, loss = count_targets([whole]), 0.0
    for start in range(0, 2, micro_batch):
        part = Batch(*(None if x is None else x[start : start + micro_batch] for x in whole))
        loss += float(micro_step(program, part, num_targets=num_targets))
        if beside is not None:
            beside(program, part).backward()
    named = program.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}, loss


def written_out(job):
    """Return what computes both losses from the routers' outputs, block by block."""
    from brimful.build.experts import is_router

    def beside(program, batch):
        heard, handles = [], []
        for name, module in program.model.named_modules():
            if is_router(program.model, name):
                hook = module.register_forward_hook(lambda _m, _a, out: heard.append(out))
                handles.append(hook)
        program.model(input_ids=batch.inputs, use_cache=False)
        for handle in handles:
            handle.remove()
        part = batch.inputs.numel() / job.tokens_per_step
        return sum(one_block(job, out, part) for out in heard)

    return beside


def one_block(job, out, part):
    logits, _, chosen = out
    if job.model.model_type == "deepseek_v3":
        scores = logits.sigmoid()
        probability = scores / scores.sum(-1, keepdim=True)
    else:
        probability = logits.softmax(-1)
    num_experts = logits.shape[1]
    share = torch.bincount(chosen.flatten(), minlength=num_experts) / chosen.numel()
    aux = num_experts * (share * probability.mean(0)).sum()
    z = logits.logsumexp(-1).square().sum() / job.tokens_per_step
    return AUX * part * aux + Z * z


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_formulas(kind):
    plain = job_of(kind)
    job = msgspec.structs.replace(plain, router_aux_loss=AUX, router_z_loss=Z)
    found, loss = gradients_of(job)
    expected, plain_loss = gradients_of(plain, beside=written_out(job))
    assert loss == pytest.approx(plain_loss, rel=1e-6)  # what is shown is the loss alone
    routers = [name for name in expected if ".gate.weight" in name or "router" in name]
    assert routers
    alone, _ = gradients_of(plain)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-4, atol=2e-6)
    changed = max(
        float((found[name] - alone[name]).norm() / alone[name].norm()) for name in routers
    )
    assert changed > 0.01


def test_the_z_loss_adds_up_over_micro_batches():
    job = job_of("mixtral", router_z_loss=Z)
    whole, _ = gradients_of(job, micro_batch=2)
    parts, _ = gradients_of(job, micro_batch=1)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_padding_is_not_counted():
    segments = torch.ones((2, 16), dtype=torch.int32)
    segments[1, 8:] = 0
    job = job_of("mixtral", router_z_loss=Z, packing="documents")
    plain = job_of("mixtral", packing="documents")
    added = {}
    for name, segment in (("all", None), ("some", segments)):
        with_z, _ = gradients_of(job, segments=segment)
        without, _ = gradients_of(plain, segments=segment)
        key = next(n for n in with_z if "gate.weight" in n)
        added[name] = float((with_z[key] - without[key]).norm())
    assert 0 < added["some"] < added["all"]


def test_the_balance_of_a_micro_batch_is_pinned():
    job = job_of("mixtral", router_aux_loss=AUX)
    assert exactness(job, "micro_batch", 2).is_exact
    assert exactness(job, "micro_batch", 1).how == "changes"
    assert exactness(job, "data_parallel", 2).how == "changes"
    with pytest.raises(InputError, match="allow=batch-statistics"):
        check_strategy(job, make_strategy(micro_batch=1))
    allowed = msgspec.structs.replace(job, allow=("batch-statistics",))
    assert check_strategy(allowed, make_strategy(micro_batch=1))


def test_other_models_have_no_routers():
    with pytest.raises(UnsupportedError, match=r"router_z_loss=0\.1 is not run"):
        check_job(make_job(router_z_loss=0.1))


@pytest.mark.parametrize(("field", "value"), [("tp", 2), ("pp", 2)])
def test_what_does_not_see_whole_micro_batches_is_refused(field, value):
    job = job_of("mixtral", router_z_loss=Z)
    ep = {"ep": 2} if field == "tp" else {}
    with pytest.raises(UnsupportedError, match=f"{field}={value}"):
        check_strategy(job, make_strategy(micro_batch=1, **{field: value}, **ep))
