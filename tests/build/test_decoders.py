"""Decoders of other kinds take the steps of the plain ``transformers`` loop, whatever the switches.

The reference runs experts one by one, makes its own masks and caps its own logits.
"""

from functools import cache
from types import SimpleNamespace

import msgspec
import pytest
import torch
import transformers
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.attention import IMPLEMENTATION, varlen
from brimful.build.attention.masks import document_mask, window_mask
from brimful.build.batch import Batch, count_targets
from brimful.build.logits import LogitStep, OwnWayError, read_steps, steps_of
from brimful.build.step import train_step
from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from other_decoders import COMMON, CONFIGS, EAGER_ONLY, WINDOW, make_decoder, make_decoder_job
from samples import make_job, make_strategy

from .documents import PACKED_LENGTHS, make_documents, run_alone, to_batch
from .plain import MASKED, plain_run, ragged_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 5
LOSS_BAR, NORM_BAR = 1e-5, 1e-4
PIECES = {"micro_batch": 1, "activation_checkpointing": "full", "loss_chunks": 3}
SELECTIVE = {"micro_batch": 4, "activation_checkpointing": "selective:1"}
CONVERSION = "peft.utils.transformers_weight_conversion.convert_peft_config_for_transformers"
"""By which PEFT takes names of linear layers for experts that older versions had under them."""
WINDOWED = ["gemma2", "gpt_oss", "mistral", "phi3", "qwen2"]


def attention_of(model_type):
    return "eager" if model_type in EAGER_ONLY else "sdpa"


def with_eager_experts(job):
    """Return the job of a reference whose experts run one after the other."""
    fields = {**job.model.hf_config, "experts_implementation": "eager"}
    model = msgspec.structs.replace(job.model, hf_config=fields)
    return msgspec.structs.replace(job, model=model)


def weights_of(job, strategy):
    model = build_program(job, strategy, CPU).model
    return {name: value.clone() for name, value in model.state_dict().items()}


@cache
def expected(model_type):
    job = make_decoder_job(model_type)
    weights = weights_of(job, make_strategy(attention="eager"))
    return plain_run(with_eager_experts(job), weights, num_steps=NUM_STEPS)


def run(job, strategy):
    program = build_program(job, strategy, CPU)
    results = []
    for step in range(NUM_STEPS):
        whole = ragged_batch(job, step=step)
        pairs = zip(*(x.split(strategy.micro_batch) for x in whole), strict=True)
        batches = [Batch(*pair) for pair in pairs]
        num_targets, rate = count_targets(batches), job.learning_rate
        results.append(train_step(program, batches, num_targets=num_targets, learning_rate=rate))
    return [(float(r.loss), float(r.grad_norm)) for r in results]


def check_steps(steps, others):
    for (loss, norm), (other_loss, other_norm) in zip(steps, others, strict=True):
        assert loss == pytest.approx(other_loss, rel=LOSS_BAR)
        assert norm == pytest.approx(other_norm, rel=NORM_BAR)


@pytest.mark.few
@pytest.mark.parametrize("switches", [{}, PIECES, SELECTIVE, {"attention": "eager"}], ids=str)
@pytest.mark.parametrize("model_type", CONFIGS)
def test_every_decoder_takes_the_steps_of_the_plain_loop(model_type, switches):
    strategy = make_strategy(**{"attention": attention_of(model_type), **switches})
    check_steps(run(make_decoder_job(model_type), strategy), expected(model_type))


@pytest.mark.few(3)
@pytest.mark.parametrize("model_type", CONFIGS)
def test_adapters_take_the_steps_of_pefts_own(model_type, monkeypatch):
    monkeypatch.setattr(CONVERSION, lambda *_args, **_kwargs: None)
    job = make_decoder_job(model_type, method="lora")
    strategy = make_strategy(attention=attention_of(model_type), **PIECES)
    weights = weights_of(job, strategy)
    check_steps(run(job, strategy), peft_steps(with_eager_experts(job), weights))


@pytest.mark.few
@pytest.mark.parametrize("model_type", CONFIGS)
def test_adapters_are_beside_every_linear_layer_but_the_head(model_type):
    job = make_decoder_job(model_type, method="lora")
    plain = build_skeleton(make_decoder_job(model_type), make_strategy(attention="eager"))
    linear = {name for name, m in plain.named_modules() if isinstance(m, torch.nn.Linear)}
    adapted = build_skeleton(job, make_strategy(attention="eager"))
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.partition(".lora_")[0] for name in trained} == linear - {"lm_head"}


def peft_steps(job, weights):
    from peft import LoraConfig, inject_adapter_in_model

    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config, use_cache=False)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    linear = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=[n for n in linear if n != "lm_head"])
    model = inject_adapter_in_model(adapters, model)
    model.load_state_dict(weights)
    trained = [p for p in model.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=job.weight_decay
    )
    return [peft_step(job, model, optimizer, trained, step) for step in range(NUM_STEPS)]


def peft_step(job, model, optimizer, trained, step):
    input_ids, labels = ragged_batch(job, step=step)
    logits = model(input_ids=input_ids).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=MASKED)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained, job.clip)
    optimizer.step()
    return float(loss.detach()), float(norm)


@pytest.mark.few(2)
@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", *WINDOWED])
@pytest.mark.parametrize("pieces", [False, True])
def test_packed_documents_learn_what_they_would_alone(model_type, pieces):
    """With windows too, which end where a document ends."""
    job = make_decoder_job(model_type, packing="documents", global_batch=2)
    attention = attention_of(model_type)
    strategy = make_strategy(attention=attention, **(PIECES if pieces else {}))
    program = build_program(job, strategy, CPU)
    weights = {name: value.clone() for name, value in program.model.state_dict().items()}
    found = [packed_step(program, step) for step in range(NUM_STEPS)]
    alone = run_alone(with_eager_experts(job), weights, PACKED_LENGTHS, num_steps=NUM_STEPS)
    check_steps(found, alone)


def packed_step(program, step):
    job, size = program.job, program.strategy.micro_batch
    rows = make_documents(job, PACKED_LENGTHS, step=step)
    batches = [to_batch(job, rows[i : i + size]) for i in range(0, len(rows), size)]
    num_targets, rate = count_targets(batches), job.learning_rate
    result = train_step(program, batches, num_targets=num_targets, learning_rate=rate)
    return float(result.loss), float(result.grad_norm)


# -- logits --


def steps(model_type, **changes):
    job = make_decoder_job(model_type, model=make_decoder(model_type, **changes))
    return steps_of(build_skeleton(job, make_strategy(attention="eager")).get_output_embeddings())


def test_caps_and_scales_are_read_from_the_class():
    assert steps("gemma2", final_logit_softcapping=2.0) == (
        LogitStep("/", 2.0),
        LogitStep("tanh", 1.0),
        LogitStep("*", 2.0),
    )
    assert steps("granite", logits_scaling=8) == (LogitStep("/", 8.0),)
    assert steps("cohere", logit_scale=0.25) == (LogitStep("*", 0.25),)


def test_a_cap_that_is_a_function_s_is_read_where_the_class_trains():
    """Beside it xLSTM has a branch in which it does not."""
    config = transformers.xLSTMConfig(num_hidden_layers=1, num_blocks=1, output_logit_soft_cap=4.0)
    with torch.device("meta"):
        model = transformers.xLSTMForCausalLM(config)
    cap = (LogitStep("/", 4.0), LogitStep("tanh", 1.0), LogitStep("*", 4.0))
    assert read_steps(model) == (LogitStep("float", 1.0), *cap)


def test_what_does_nothing_is_no_step():
    assert steps("gemma2", final_logit_softcapping=None) == ()
    assert steps("granite", logits_scaling=1.0) == ()
    assert steps("mistral") == ()


def test_a_cap_would_be_missed(monkeypatch):
    """The comparison with the plain loop is one that can fail."""
    monkeypatch.setattr("brimful.build.loss.finish", lambda logits, _steps: logits)
    with pytest.raises(AssertionError):
        check_steps(
            run(make_decoder_job("gemma2"), make_strategy(attention="eager")), expected("gemma2")
        )


class Squared(torch.nn.Module):
    """Squares its logits."""

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, hidden_states):
        logits = self.lm_head(hidden_states)
        logits = logits**2
        return logits  # noqa: RET504 - as transformers writes it


class Sometimes(Squared):
    """Scales its logits only while it trains."""

    def forward(self, hidden_states):
        logits = self.lm_head(hidden_states)
        if self.training:
            logits = logits * self.config.hidden_size
        return logits


@pytest.mark.few
@pytest.mark.parametrize("model_class", [Squared, Sometimes])
def test_what_cannot_be_read_is_refused(model_class):
    skeleton = build_skeleton(make_job(), make_strategy())
    skeleton.__class__ = model_class
    with pytest.raises(OwnWayError):
        read_steps(skeleton)


# -- windows --


@pytest.mark.few
@pytest.mark.parametrize("seq_len", [5, 16, 24])
@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_window_hides_what_is_before_it_and_after(seq_len, window):
    mask = window_mask(seq_len=seq_len, window=window, dtype=torch.float32, device=CPU)
    assert mask.shape == (1, 1, seq_len, seq_len)
    for query in range(seq_len):
        for key in range(seq_len):
            assert bool(mask[0, 0, query, key] == 0) is (query - window < key <= query)


def test_a_window_ends_with_its_document():
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0]], dtype=torch.int32)
    mask = document_mask(segments, dtype=torch.float32, window=2)[0, 0]
    visible = [(row == 0).nonzero().flatten().tolist() for row in mask]
    assert visible == [[0], [0, 1], [1, 2], [3], [3, 4], [4, 5], [5, 6], [7]]


@pytest.mark.few
@pytest.mark.parametrize("model_type", WINDOWED)
def test_a_window_is_seen_in_the_loss(model_type):
    """Rows longer than the window are learnt otherwise than without it."""
    fields = {"sliding_window": 512}
    job = make_decoder_job(model_type, model=make_decoder(model_type, **fields))
    without = run(job, make_strategy(attention="eager"))
    with pytest.raises(AssertionError):
        check_steps(without, expected(model_type))


@pytest.mark.few
@pytest.mark.parametrize("model_type", WINDOWED)
def test_a_kernel_without_masks_is_refused_where_a_window_matters(model_type):
    job = make_decoder_job(model_type)
    with pytest.raises(UnsupportedError, match=r"attention=flex .*use eager"):
        build_skeleton(job, make_strategy(attention="flex"))


@pytest.mark.parametrize("attention", ["flash", "varlen"])
def test_flash_attention_is_told_a_window_as_a_number(attention, monkeypatch):
    """A class that says its window to its attention needs no mask of it."""
    told = []

    def flash(query, *_others, **switches):
        told.append(switches)
        return (torch.empty_like(query),)

    build_skeleton(make_decoder_job("mistral"), make_strategy(attention=attention))
    monkeypatch.setattr(varlen, "_flash", flash)
    heads = [torch.empty((1, 2, 24, 8), device="meta") for _ in range(3)]
    attend = AttentionInterface()[IMPLEMENTATION[attention]]
    out, _ = attend(SimpleNamespace(is_causal=True), *heads, None, sliding_window=7)
    assert out.shape == (1, 24, 2, 8)
    assert told == [{"scale": None, "window_size_left": 6, "window_size_right": 0}]


def test_a_window_as_long_as_the_row_is_none():
    job = make_decoder_job("mistral", model=make_decoder("mistral", sliding_window=24))
    build_skeleton(job, make_strategy(attention="flash"))


# -- what is refused --


@pytest.mark.few
@pytest.mark.parametrize("model_type", EAGER_ONLY)
@pytest.mark.parametrize("attention", ["sdpa", "flash", "efficient", "cudnn", "flex", "varlen"])
def test_attention_that_would_leave_something_out_is_refused(model_type, attention):
    job = make_decoder_job(model_type, seq_len=4)
    what = "cap on scores" if model_type == "gemma2" else "sinks of attention"
    with pytest.raises(UnsupportedError, match=rf"leave out (its|the) {what}.*use eager"):
        build_skeleton(job, make_strategy(attention=attention))


@pytest.mark.few
@pytest.mark.parametrize("attention", ["flash", "varlen"])
def test_kernels_of_one_width_are_refused_where_keys_and_values_differ(attention):
    job = make_decoder_job("deepseek_v3")
    with pytest.raises(UnsupportedError, match=r"16 and 8 wide; use eager, sdpa"):
        build_skeleton(job, make_strategy(attention=attention))
    alike = make_decoder("deepseek_v3", v_head_dim=16)
    build_skeleton(make_decoder_job("deepseek_v3", model=alike), make_strategy(attention=attention))


def refusal(model_type, **fields):
    config = {"model_type": model_type, **CONFIGS.get(model_type, COMMON), **fields}
    job = make_job(model=read_config(f"tiny-{model_type}", config))
    with pytest.raises(UnsupportedError) as caught:
        build_skeleton(job, make_strategy())
    return str(caught.value)


def test_experts_of_sizes_that_hang_on_values_are_refused():
    assert "as many tokens as happen to choose them" in refusal("jetmoe", num_local_experts=4)
    told = refusal("mixtral", experts_implementation="eager")
    assert "experts_implementation=eager" in told


def test_experts_that_no_grouped_product_takes_are_refused():
    assert "width 82" in refusal("mixtral", intermediate_size=82)


def test_an_auxiliary_loss_of_the_routers_is_refused():
    assert "output_router_logits" in refusal("mixtral", output_router_logits=True)


def test_a_row_that_sees_a_window_by_itself_is_refused():
    assert "see no farther" in refusal("cohere", sliding_window=WINDOW)
