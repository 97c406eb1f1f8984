"""Adapters: what trains, in which types, and the steps of PEFT's own model in a plain loop."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from brimful.build import adapters
from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import Batch, count_targets
from brimful.build.program import gradients
from brimful.build.quantize import is_quantized
from brimful.build.step import micro_step, train_step
from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.models.targets import WITH_STATE_SPACES, takes_adapters
from brimful.values.job import Adapter
from samples import make_job, make_model, make_strategy

from .plain import BETAS, EPSILON, MASKED, plain_model, ragged_batch

pytestmark = [
    pytest.mark.torch,
    # PEFT asks transformers by a name that the latter has replaced.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

CPU = torch.device("cpu")
NUM_STEPS = 6
KINDS = {
    "lora": ("lora", "same"),
    "dora": ("dora", "same"),
    "qdora": ("dora", "nf4"),
    "nf4": ("qlora", "nf4"),
    "nf4-double": ("qlora", "nf4-double"),
    "int8": ("qlora", "int8"),
    "llm-int8": ("qlora", "llm-int8"),
}
ARCHITECTURES = ["llama", "gpt2"]


def adapter(**changes):
    fields = {
        "rank": 4,
        "alpha": 8.0,
        "targets": ("all-linear",),
        "trained_modules": (),
        "dtype": "same",
        "base": "same",
        "upcast": "none",
        "input_requires_grad": False,
    }
    return Adapter(**{**fields, **changes})


def job_of(kind, architecture="llama", *, job=None, **changes):
    method, base = KINDS[kind]
    fields = {"method": method, "adapter": adapter(base=base, **changes), **(job or {})}
    return make_job(architecture, **fields)


def batches_of(job, step, size):
    inputs, labels = ragged_batch(job, step=step)
    return [Batch(x, y) for x, y in zip(inputs.split(size), labels.split(size), strict=True)]


def run(program, num_steps=NUM_STEPS, *, same_data=False):
    steps, job = [], program.job
    for step in range(num_steps):
        batches = batches_of(job, 0 if same_data else step, program.strategy.micro_batch)
        num_targets = count_targets(batches)
        result = train_step(
            program, batches, num_targets=num_targets, learning_rate=job.learning_rate
        )
        steps.append((float(result.loss), float(result.grad_norm)))
    return steps


def logits(model, job):
    with torch.no_grad():
        return model(input_ids=ragged_batch(job, step=0)[0]).logits


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def stir(model, seed=1):
    """Give B and magnitudes values that make a difference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trained(model).items():
            if ".lora_A." not in name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.05 * noise.to(parameter.dtype))


def assert_equal_steps(found, expected):
    for (loss, norm), (their_loss, their_norm) in zip(found, expected, strict=True):
        assert loss == pytest.approx(their_loss, rel=1e-5)
        assert norm == pytest.approx(their_norm, rel=1e-4)


# -- what trains --


@pytest.mark.few
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_adapters_train_and_the_loss_falls(kind, architecture):
    program = build_program(job_of(kind, architecture), make_strategy(), CPU)
    frozen = {n: p.clone() for n, p in program.model.named_parameters() if not p.requires_grad}
    assert all(".lora_" in name for name in trained(program.model))
    micro_step(program, batches_of(program.job, 0, 4)[0], num_targets=30)
    assert len(gradients(program)) == len(trained(program.model)) > 0
    assert all(p.grad is not None for p in trained(program.model).values())
    program.optimizer.zero_grad()
    losses = [loss for loss, _ in run(program, same_data=True)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1
    now = dict(program.model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())


def test_every_linear_layer_but_the_head_gets_an_adapter():
    model = build_skeleton(job_of("lora"), make_strategy())
    adapted = {name for name, m in model.named_modules() if isinstance(m, LoraLayer)}
    linear = {name for name, m in model.named_modules() if name + ".base_layer" in _linear(model)}
    assert adapted == linear
    assert len(adapted) == 7 * 3


def _linear(model):
    return {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}


def test_targets_are_matched_by_the_end_of_the_path_as_by_peft():
    targets = ("q_proj", "layers.1.mlp.down_proj")
    model = build_skeleton(job_of("lora", targets=targets), make_strategy())
    adapted = {name for name, m in model.named_modules() if isinstance(m, LoraLayer)}
    attention = {f"model.layers.{i}.self_attn.q_proj" for i in range(3)}
    assert adapted == attention | {"model.layers.1.mlp.down_proj"}


@pytest.mark.parametrize("kind", ["nf4", "int8", "llm-int8"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_linear_layer_but_the_head_is_quantised_targeted_or_not(kind, architecture):
    target = "q_proj" if architecture == "llama" else "c_attn"
    model = build_skeleton(job_of(kind, architecture, targets=(target,)), make_strategy())
    quantised = [name for name, m in model.named_modules() if is_quantized(m)]
    assert len(quantised) == 3 * (7 if architecture == "llama" else 4)
    assert not is_quantized(model.get_output_embeddings())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_trained_modules_begin_as_copies_and_train_whole(architecture):
    job = job_of("int8", architecture, trained_modules=("lm_head",))
    model = make_model(architecture, tie_word_embeddings=False)
    program = build_program(
        make_job(architecture, model=model, method=job.method, adapter=job.adapter),
        make_strategy(),
        CPU,
    )
    wrapped = program.model.lm_head
    original, copy = wrapped.original_module.weight, wrapped.modules_to_save["default"].weight
    assert torch.equal(original, copy)
    assert copy.requires_grad
    assert not original.requires_grad
    run(program, 1)
    assert not torch.equal(original, copy)


def test_names_of_the_plain_model_are_found_again():
    job = job_of("dora", trained_modules=("lm_head",))
    plain = dict(build_skeleton(make_job(), make_strategy()).named_parameters())
    model = build_skeleton(job, make_strategy())
    found = {}
    for name, parameter in model.named_parameters():
        if (known := adapters.base_name(name)) is not None:
            found[known] = parameter.shape
    assert found == {name: p.shape for name, p in plain.items()}
    assert [adapters.base_name(name) for name in plain] == list(plain)


# -- types --


@pytest.mark.parametrize(
    ("precision", "changes", "base", "adapters_in"),
    [
        ("fp32", {}, torch.float32, torch.float32),
        ("fp32", {"base": "bf16"}, torch.bfloat16, torch.float32),
        ("bf16", {}, torch.bfloat16, torch.bfloat16),
        ("bf16", {"dtype": "fp32"}, torch.bfloat16, torch.float32),
        ("bf16-mixed", {}, torch.float32, torch.float32),
        ("bf16-mixed", {"base": "bf16"}, torch.bfloat16, torch.float32),
        ("bf16-mixed", {"base": "fp16"}, torch.float16, torch.float32),
    ],
)
def test_base_and_adapters_are_held_in_their_types(precision, changes, base, adapters_in):
    job = make_job(method="lora", precision=precision, adapter=adapter(**changes))
    model = build_skeleton(job, make_strategy())
    assert (adapters.base_dtype(job), adapters.adapter_dtype(job)) == (base, adapters_in)
    assert {p.dtype for p in trained(model).values()} == {adapters_in}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {base}


@pytest.mark.parametrize(
    ("precision", "rest"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("bf16-mixed", torch.bfloat16)],
)
def test_what_is_left_of_a_quantised_base_has_the_type_of_the_products(precision, rest):
    job = job_of("nf4", "gpt2", job={"precision": precision})
    model = build_program(job, make_strategy(), CPU).model
    whole = {p.dtype for n, p in model.named_parameters() if ".lora_" not in n and p.dim() == 1}
    assert whole == {rest}
    assert model.get_input_embeddings().weight.dtype == rest


@pytest.mark.parametrize("kind", ["lora", "nf4"])
@pytest.mark.parametrize("upcast", ["none", "norms", "all"])
def test_upcast_widens_what_it_names(kind, upcast):
    job = job_of(kind, job={"precision": "bf16-mixed"}, upcast=upcast)
    if kind == "lora":
        job = make_job(
            method="lora", precision="bf16-mixed", adapter=adapter(base="bf16", upcast=upcast)
        )
    program = build_program(job, make_strategy(), CPU)
    norms = {p.dtype for n, p in program.model.named_parameters() if "norm" in n}
    embedding = program.model.get_input_embeddings().weight.dtype
    wide, low = torch.float32, torch.bfloat16
    assert norms == {low if upcast == "none" else wide}
    assert embedding == (wide if upcast == "all" else low)
    assert all(math.isfinite(loss) for loss, _ in run(program, 2))


def test_half_precision_follows_fp32_within_its_grain():
    losses = {}
    for precision in ("fp32", "bf16-mixed"):
        program = build_program(
            job_of("nf4-double", job={"precision": precision}), make_strategy(), CPU
        )
        losses[precision] = [loss for loss, _ in run(program, 3)]
    assert losses["bf16-mixed"] == pytest.approx(losses["fp32"], rel=2e-2)
    assert losses["bf16-mixed"] != losses["fp32"]


# -- the mathematics --


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_fresh_adapter_leaves_the_model_as_it_was(kind, architecture):
    plain = build_program(make_job(architecture), make_strategy(), CPU).model
    job = job_of(kind, architecture)
    adapted = build_program(job, make_strategy(), CPU).model
    torch.testing.assert_close(logits(adapted, job), logits(plain, job), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_magnitude_begins_as_the_norm_of_its_row(architecture):
    model = build_program(job_of("dora", architecture), make_strategy(), CPU).model
    for layer in adapters.adapted_layers(model):
        weight = layer.get_base_layer().weight
        dim = 0 if architecture == "gpt2" else 1
        magnitude = layer.lora_magnitude_vector["default"].weight
        torch.testing.assert_close(magnitude, weight.norm(dim=dim))


def peft_run(model, job, num_steps=NUM_STEPS):
    """Train PEFT's model in the slow and obvious loop."""
    chosen = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in chosen if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in chosen if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=BETAS, eps=EPSILON)
    steps = []
    for step in range(num_steps):
        inputs, labels = ragged_batch(job, step=step)
        scores = model(input_ids=inputs).logits.flatten(0, 1)
        picked = labels.flatten() != MASKED
        losses = -scores.log_softmax(-1)[picked].gather(1, labels.flatten()[picked, None])
        loss = losses.sum() / picked.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(chosen, job.clip)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


def peft_model(plain, ours, job):
    """Wrap a plain model as anybody would; adapters begin with the values of ours."""
    config = LoraConfig(
        r=job.adapter.rank,
        lora_alpha=int(job.adapter.alpha),
        target_modules="all-linear",
        use_dora=job.method == "dora",
        fan_in_fan_out=job.model.model_type == "gpt2",
        task_type="CAUSAL_LM",
    )
    theirs = get_peft_model(plain, config)
    values = trained(ours)
    with torch.no_grad():
        for name, parameter in trained(theirs).items():
            parameter.copy_(values[name.removeprefix("base_model.model.")])
    return theirs


def plain_weights(model):
    return {
        known: p.detach().clone()
        for name, p in model.named_parameters()
        if (known := adapters.base_name(name)) is not None
    }


@pytest.mark.few
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_the_steps_are_those_of_peft_in_a_plain_loop(kind, architecture):
    job = job_of(kind, architecture, job={"model": make_model(architecture)})
    program = build_program(job, make_strategy(), CPU)
    stir(program.model)
    weights = plain_weights(program.model)
    weights["lm_head.weight"] = program.model.get_output_embeddings().weight.detach().clone()
    theirs = peft_model(plain_model(job, weights), program.model, job)
    assert_equal_steps(run(program), peft_run(theirs, job))


@pytest.mark.few
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["nf4-double", "llm-int8"])
def test_the_steps_are_those_of_transformers_quantised_base(kind, architecture, tmp_path):
    pytest.importorskip("bitsandbytes")
    saved = build_program(make_job(architecture), make_strategy(), CPU).model
    saved.save_pretrained(tmp_path / "model")
    job = job_of(kind, architecture, job={"weights": str(tmp_path / "model")})
    program = build_program(job, make_strategy(), CPU)
    stir(program.model)
    four_bit = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.float32,
    }
    how = four_bit if kind == "nf4-double" else {"load_in_8bit": True}
    plain = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model",
        quantization_config=BitsAndBytesConfig(**how),
        dtype=torch.float32,
        attn_implementation="eager",
    )
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    theirs = peft_model(plain, program.model, job).train()
    assert_equal_steps(run(program), peft_run(theirs, job))


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "switches",
    [
        {"micro_batch": 1},
        {"micro_batch": 4},
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "full:1", "loss_chunks": 4, "attention": "eager"},
    ],
    ids=str,
)
def test_strategies_change_nothing_that_adapters_learn(kind, switches):
    plain = run(build_program(job_of(kind), make_strategy(), CPU), 3)
    assert_equal_steps(run(build_program(job_of(kind), make_strategy(**switches), CPU), 3), plain)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_gradients_at_the_embedding_cost_memory_and_change_nothing(checkpointing):
    steps = {}
    for switch in (False, True):
        job = job_of("lora", input_requires_grad=switch)
        program = build_program(job, make_strategy(activation_checkpointing=checkpointing), CPU)
        seen = []
        program.model.get_input_embeddings().register_forward_hook(
            lambda _, __, out, seen=seen: seen.append(out.requires_grad)
        )
        steps[switch] = run(program, 3)
        assert set(seen) == {switch}
    assert_equal_steps(steps[True], steps[False])


# -- refusals --


def test_a_misspelt_target_is_told_with_the_layers_that_are_there():
    with pytest.raises(UnknownNameError, match=r"q_porj.*did you mean q_proj"):
        build_skeleton(job_of("lora", targets=("q_porj",)), make_strategy())


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "input_layernorm"])
def test_heads_embeddings_and_norms_are_no_targets(target):
    with pytest.raises(UnknownNameError, match=r"the linear layers of this model are"):
        build_skeleton(job_of("lora", targets=(target,)), make_strategy())


def test_a_misspelt_trained_module_is_told():
    with pytest.raises(UnknownNameError, match=r"lm_haed.*lm_head"):
        build_skeleton(job_of("lora", trained_modules=("lm_haed",)), make_strategy())


def test_a_missing_peft_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UnsupportedError, match=r"pip install .peft"):
        build_skeleton(job_of("lora"), make_strategy())


@pytest.mark.parametrize("upcast", ["norms", "all"])
def test_upcasting_without_autocast_is_refused(upcast):
    job = make_job(method="lora", precision="bf16", adapter=adapter(upcast=upcast))
    with pytest.raises(InputError, match=r"upcast=.*bf16-mixed"):
        build_skeleton(job, make_strategy())


@pytest.mark.parametrize("kind", ["nf4", "nf4-double"])
def test_a_base_in_4_bits_takes_what_was_widened_without_autocast(kind):
    job = job_of(kind, job={"precision": "bf16"}, upcast="all", dtype="fp32")
    program = build_program(job, make_strategy(), CPU)
    assert program.model.get_output_embeddings().weight.dtype == torch.float32
    assert all(math.isfinite(loss) for loss, _ in run(program, 2))
    narrow = job_of(kind, job={"precision": "bf16"}, upcast="norms")
    with pytest.raises(InputError, match=r"upcast=.*bf16-mixed"):
        build_skeleton(narrow, make_strategy())


@pytest.mark.parametrize("name", ["out_proj", "in_proj", "conv1d", "q_proj"])
@pytest.mark.parametrize("model_type", [*sorted(WITH_STATE_SPACES), "llama", "bamba"])
def test_what_takes_no_adapter_is_what_peft_refuses(model_type, name):
    model = SimpleNamespace(config=SimpleNamespace(model_type=model_type))
    taken = adapters._may_adapt(model, f"mixer.{name}")
    assert takes_adapters(model_type, f"mixer.{name}.weight") is taken
