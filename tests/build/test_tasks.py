"""Every task takes the steps of a plain loop over the model's own forward, however it is cut."""

import math
from functools import cache
from itertools import product

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import IGNORE_INDEX, count_targets
from brimful.build.blocks import decoder_blocks
from brimful.build.step import evaluate, train_step
from brimful.build.tasks import task_of
from brimful.build.tasks.padding import padding_mask
from brimful.build.user_module import make, take_sample, user_data
from brimful.errors import InputError, ModelConfigError, UnsupportedError
from brimful.models.config import default_task, for_task, parameter_count, read_config
from brimful.simulate.run import simulate
from hybrids import HYBRID, SPARSE
from other_models import CNN, cut, make_other_job, make_other_model, ragged
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 5
NAMES = ["bert", "t5", "t5-untied", "bart", "switch", CNN]
OFF = dict.fromkeys(
    (
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
        *("dropout_rate", "router_jitter_noise"),
        *("dropout", "attention_dropout", "activation_dropout"),
    ),
    0.0,
)
SWITCHES = [
    {"micro_batch": 4},
    {"micro_batch": 2},
    {"micro_batch": 1},
    {"attention": "eager"},
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "full:2", "micro_batch": 1},
    {"activation_checkpointing": "selective"},
    {"loss_chunks": 3},
]


def strategy_for(name, **switches):
    own = {"attention": "eager"} if name == "switch" else {}
    return make_strategy(**{**own, **switches})


def plain_model(job, weights):
    if job.task == "module":
        model = make(job.model.name).model
        model[4].p = 0.0
        model.load_state_dict({k.removeprefix("model."): v for k, v in weights.items()})
        return model.train()
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    for field, value in OFF.items():
        if hasattr(config, field):
            setattr(config, field, value)
    auto = {
        "sequence-classification": AutoModelForSequenceClassification,
        "seq2seq": AutoModelForSeq2SeqLM,
    }[job.task]
    model = auto.from_config(config, attn_implementation="eager")
    if not job.model.tied_embeddings and job.task == "seq2seq":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    model.load_state_dict(weights)
    return model.train()


def plain_loss(job, model, batch):
    """Mean over the unmasked labels of the whole step, by the model's own forward."""
    if job.task == "module":
        logits = model(batch.inputs)
    else:
        extra = {"attention_mask": (batch.segments != 0).long()}
        if job.task == "seq2seq":
            extra["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch.labels)
            extra["use_cache"] = False
        logits = model(input_ids=batch.inputs, **extra).logits
    labels = batch.labels.flatten()
    kept = labels != IGNORE_INDEX
    chosen = logits.reshape(len(labels), -1).log_softmax(-1)[kept]
    return -chosen.gather(1, labels[kept, None]).sum() / kept.sum()


@cache
def expected(name):
    """Train with whole batches; returns (loss, gradient norm) of every step."""
    job = make_other_job(name)
    program = build_program(job, strategy_for(job.model.model_type[:6]), CPU)
    weights = {key: value.clone() for key, value in program.model.state_dict().items()}
    model = plain_model(job, weights)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8)
    steps = []
    for step in range(NUM_STEPS):
        loss = plain_loss(job, model, ragged(job, step=step))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # an expert that nobody chose
            parameter.grad = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


def run(job, strategy):
    program = build_program(job, strategy, CPU)
    results = []
    for step in range(NUM_STEPS):
        batches = cut(ragged(job, step=step), strategy.micro_batch)
        num_targets = count_targets(batches)
        results.append(
            train_step(program, batches, num_targets=num_targets, learning_rate=job.learning_rate)
        )
    return [(float(r.loss), float(r.grad_norm)) for r in results]


CASES = [
    (name, switches)
    for name in NAMES
    for switches in SWITCHES
    if not ("loss_chunks" in switches and name in {"bert", CNN})
    and not (name == "switch" and "attention" in switches)
    and not (name == CNN and {"attention", "activation_checkpointing"} & set(switches))
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "switches"), CASES, ids=str)
def test_every_strategy_takes_the_steps_of_the_plain_loop(name, switches):
    steps = run(make_other_job(name), strategy_for(name, **switches))
    for (loss, norm), (plain, plain_norm) in zip(steps, expected(name), strict=True):
        assert loss == pytest.approx(plain, rel=1e-5)
        assert norm == pytest.approx(plain_norm, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_loop_learns(name):
    losses = [loss for loss, _ in expected(name)]
    assert len(set(losses)) == NUM_STEPS


@pytest.mark.parametrize("name", ["bert", "t5", "t5-untied", "switch"])
def test_blocks_and_parameters_are_as_many_as_the_description_says(name):
    job = make_other_job(name)
    skeleton = build_skeleton(job, strategy_for(name))
    assert len(decoder_blocks(skeleton)) == job.model.num_layers
    assert {p.device.type for p in skeleton.parameters()} == {"meta"}
    assert sum(p.numel() for p in skeleton.parameters()) == parameter_count(job.model).total


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_neighbours_change_no_row(name):
    """Rows one by one, cut to their length, give the loss of the padded batch."""
    job = make_other_job(name)
    program = build_program(job, strategy_for(name, micro_batch=1), CPU)
    whole = ragged(job, step=0)
    rows = cut(whole, 1)
    if whole.segments is not None:
        rows = [
            row._replace(inputs=row.inputs[:, :length], segments=None)
            for row, length in zip(rows, (whole.segments != 0).sum(1).tolist(), strict=True)
        ]
    assert evaluate(program, rows) == pytest.approx(evaluate(program, [whole]), rel=1e-5)


def test_a_row_of_nothing_but_padding_gives_numbers():
    job = make_other_job("bert")
    program = build_program(job, strategy_for(job.model.model_type[:6]), CPU)
    batch = ragged(job, step=0)
    batch.segments[1] = 0
    assert evaluate(program, [batch]) > 0
    masked = padding_mask(batch, torch.float32)
    assert masked.shape == (4, 1, 1, job.seq_len)
    assert (masked[1] == torch.finfo(torch.float32).min).all()
    assert not masked[0].any()


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_off_whatever_the_configuration_says(name):
    job = make_other_job(name)
    skeleton = build_skeleton(job, strategy_for(name))
    rates = [m.p for m in skeleton.modules() if isinstance(m, torch.nn.Dropout)]
    rates += [m.dropout for m in skeleton.modules() if isinstance(getattr(m, "dropout", ""), float)]
    assert rates
    assert set(rates) == {0.0}
    noise = [m.jitter_noise for m in skeleton.modules() if hasattr(m, "jitter_noise")]
    assert set(noise) <= {0.0}
    assert bool(noise) is (name == "switch")


@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_experts_in_their_places_are_those_of_transformers(capacity):
    """The library's own forward, whose sizes depend on values, gives the same numbers."""
    job = make_other_job("switch", model=make_other_model("switch", expert_capacity=capacity))
    program = build_program(job, strategy_for(job.model.model_type[:6]), CPU)
    model = plain_model(job, program.model.state_dict())
    batch = ragged(job, step=0)
    share = evaluate(program, [batch])
    assert share == pytest.approx(float(plain_loss(job, model.eval(), batch).detach()), rel=1e-5)


def test_capacity_drops_tokens():
    losses = set()
    for capacity in (1, 2, 24):
        model = make_other_model("switch", expert_capacity=capacity)
        job = make_other_job("switch", model=model)
        program = build_program(job, strategy_for("switch"), CPU)
        losses.add(evaluate(program, [ragged(job, step=0)]))
    assert len(losses) == 3


def test_the_router_is_held_in_its_own_type_from_the_first():
    job = make_other_job("switch", precision="bf16")
    program = build_program(job, strategy_for(job.model.model_type[:6]), CPU)
    held = {n: p.dtype for n, p in program.model.named_parameters()}
    batch = ragged(job, step=0)
    train_step(program, cut(batch, 2), num_targets=count_targets([batch]), learning_rate=1e-3)
    assert {n: p.dtype for n, p in program.model.named_parameters()} == held
    assert {dtype for name, dtype in held.items() if "router" in name} == {torch.float32}


def test_t5_keeps_in_fp32_what_its_class_says_when_held_in_fp16():
    skeleton = build_skeleton(make_other_job("t5", precision="fp16"), make_strategy())
    kept = {n for n, p in skeleton.named_parameters() if p.dtype == torch.float32}
    assert kept == {n for n, _ in skeleton.named_parameters() if ".wo." in n}
    assert kept


GPT2_LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}, "pad_token_id": 0}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_decoder_classifies_by_its_last_token_as_transformers_does(architecture):
    base = make_job(architecture).model
    model = read_config("x", {"model_type": architecture, **base.hf_config, **GPT2_LABELS})
    job = make_other_job("bert", model=model, task="sequence-classification")
    program = build_program(job, strategy_for(job.model.model_type[:6]), CPU)
    batch = ragged(job, step=0)
    program.model.eval()
    plain = program.model(
        input_ids=batch.inputs, attention_mask=(batch.segments != 0).long()
    ).logits
    kept = batch.labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(plain[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(loss.detach()), rel=1e-5)


OTHERS = {
    "mistral": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "gemma": {"num_key_value_heads": 1, "head_dim": 8},
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "olmo2": {"num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "starcoder2": {"num_key_value_heads": 2},
    "gpt_neox": {},
    "glm4": {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 64},
    "granite": {"num_key_value_heads": 2},
    "llama4_text": {
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 48,
        "num_local_experts": 4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 0],
        "attention_chunk_size": 64, "pad_token_id": 0,
    },
    "nemotron": {"num_key_value_heads": 2},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 32},
    "phi": {},
    "seed_oss": {"num_key_value_heads": 2, "head_dim": 8},
    "hyperclovax": {"num_key_value_heads": 2, "logits_scaling": 0.25, "head_dim": 8},
    "minicpm3": {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "v_head_dim": 8, "dim_model_base": 8, "num_key_value_heads": 4,
    },
    "modernbert-decoder": {
        "local_attention": 64, "global_attn_every_n_layers": 3, "pad_token_id": 0,
        "cls_token_id": 0, "sep_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    },
    "bert-generation": {"is_decoder": True, "pad_token_id": 0},
}  # fmt: skip
"""Of the last four, what stands around the output layer is read from the class."""
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


OWN = {
    "biogpt": {},
    "bloom": {},
    "codegen": {"n_positions": 128, "n_ctx": 128, "rotary_dim": 4, "n_inner": 80},
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]], "window_size": 16},
    "falcon": {},
    "gptj": {"n_positions": 128, "rotary_dim": 4, "n_inner": 80},
    "stablelm": {"num_key_value_heads": 2},
    "xglm": {"ffn_dim": 80},
}
"""Decoders whose attention is their own, and written out."""
ATTENDED = [
    *((name, attention) for name in OTHERS for attention in ("sdpa", "eager")),
    *((name, "eager") for name in {**OWN, **SPARSE}),
    *((name, attention) for name in HYBRID for attention in ("sdpa", "eager")),
]


@pytest.mark.few(30)
@pytest.mark.parametrize(("model_type", "attention"), ATTENDED)
def test_other_decoders_compute_what_their_own_forward_does(model_type, attention):
    own = {**OTHERS, **OWN, **SPARSE, **HYBRID}[model_type]
    model = read_config(model_type, {"model_type": model_type, **SIZES, **own})
    job = make_job(model=model)
    program = build_program(job, make_strategy(attention=attention), CPU)
    assert len(decoder_blocks(program.model)) == model.num_layers
    batch = ragged(make_other_job("t5", model=model, task="causal-lm"), step=0)
    ids = batch.inputs.clamp(min=1)
    labels = ids.roll(-1, 1).masked_fill(batch.segments == 0, IGNORE_INDEX)
    plain = AutoModelForCausalLM.from_config(program.model.config, attn_implementation="eager")
    plain.load_state_dict(program.model.state_dict())
    with torch.no_grad():
        logits = plain.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    kept = labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(logits[kept], labels[kept])
    assert evaluate(program, [batch._replace(inputs=ids, labels=labels)]) == pytest.approx(
        float(loss), rel=1e-5
    )


@pytest.mark.parametrize(
    ("model_type", "changes", "facts"),
    [
        (
            "mixtral",
            {"output_router_logits": True, "num_local_experts": 2, "num_key_value_heads": 2},
            ("auxiliary", "false"),
        ),
        ("rembert", {}, ("rembert", "hides later tokens", "llama")),
    ],
)
def test_decoders_of_another_mathematics_are_refused(model_type, changes, facts):
    model = read_config(model_type, {"model_type": model_type, **SIZES, **changes})
    with pytest.raises(UnsupportedError) as raised:
        build_skeleton(make_job(model=model), make_strategy(attention="eager"))
    assert all(fact in str(raised.value) for fact in facts)


@pytest.mark.parametrize(
    "model_type",
    ["distilbert", "roberta", "electra", "albert", "rembert", "roformer", "deberta", "deberta-v2"],
)
def test_other_encoders_classify_as_their_own_forward_does(model_type):
    fields = {**SIZES, "id2label": {"0": "a", "1": "b", "2": "c"}, "pad_token_id": 0}
    if model_type == "distilbert":
        fields |= {"dim": 32, "hidden_dim": 80, "n_layers": 3, "n_heads": 4}
    model = read_config(model_type, {"model_type": model_type, **fields})
    job = make_other_job("bert", model=model)
    is_own = model_type in {"rembert", "roformer", "deberta", "deberta-v2"}
    program = build_program(job, make_strategy(attention="eager" if is_own else "sdpa"), CPU)
    batch = ragged(job, step=0)
    program.model.eval()
    mask = (batch.segments != 0).long() if is_own else padding_mask(batch, torch.float32)
    with torch.no_grad():
        logits = program.model(input_ids=batch.inputs, attention_mask=mask).logits
    rows = [
        program.model(input_ids=row.inputs[:, : int(row.segments.sum())]).logits
        for row in cut(batch, 1)
    ]
    torch.testing.assert_close(torch.cat(rows), logits, rtol=1e-4, atol=1e-5)
    kept = batch.labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(logits[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoders_windows_are_those_of_its_own_forward(attention):
    own = {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0}
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    fields = {**SIZES, **own, **labels, "cls_token_id": 0, "sep_token_id": 0}
    model = read_config("modernbert", {"model_type": "modernbert", **fields})
    job = make_other_job("bert", model=model)
    program, own = (
        build_program(job, make_strategy(attention=each), CPU) for each in (attention, "eager")
    )
    batch = ragged(job, step=0)
    assert batch.inputs.shape[1] > 8
    own.model.eval()
    with torch.no_grad():  # only of what it knows does the class make masks by itself
        theirs = own.model(input_ids=batch.inputs, attention_mask=(batch.segments != 0).long())
    kept = batch.labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(theirs.logits[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)
    program.model.config.sliding_window = 10_000  # as if there were none
    assert evaluate(program, [batch]) != pytest.approx(float(loss), rel=1e-5)


POOLED = {
    "eurobert": {"classifier_pooling": "late", "num_key_value_heads": 2, "head_dim": 8},
    "modernbert": {
        "classifier_pooling": "mean", "local_attention": 8, "global_attn_every_n_layers": 2,
        "cls_token_id": 0, "sep_token_id": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("model_type", POOLED)
def test_a_head_that_takes_a_mean_leaves_padding_out(model_type):
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "pad_token_id": 0}
    fields = {**SIZES, **labels, **POOLED[model_type]}
    model = read_config(model_type, {"model_type": model_type, **fields})
    job = make_other_job("bert", model=model)
    program = build_program(job, make_strategy(attention="sdpa"), CPU)
    batch = ragged(job, step=0)
    own = build_program(job, make_strategy(attention="eager"), CPU).model.eval()
    with torch.no_grad():
        seen = (batch.segments != 0).long()
        logits = own(input_ids=batch.inputs, attention_mask=seen).logits
    kept = batch.labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(logits[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)


STACKS = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "vocab_size": 97,
    "max_position_embeddings": 64, "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
T5_LIKE = {
    "d_model": 32, "d_kv": 8, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "vocab_size": 97, "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
PAIRED = dict.fromkeys(
    ("bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "blenderbot-small", "plbart"),
    STACKS,
) | {"umt5": T5_LIKE, "mt5": T5_LIKE}
"""Encoder-decoders that no file here describes."""


GEMMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "sliding_window": 4,
    "pad_token_id": 0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
WRITES = {"num_hidden_layers": 3, "is_decoder": True, "add_cross_attention": True}
OWN_PAIRS = {
    "t5gemma": {"encoder": GEMMA, "decoder": GEMMA | {"num_hidden_layers": 3}, "vocab_size": 97},
    "mvp": STACKS,
    "pegasus_x": STACKS | {"block_size": 4, "num_global_tokens": 4},
    "bigbird_pegasus": STACKS,
    "encoder-decoder": {
        "encoder": BERT,
        "decoder": BERT | WRITES,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
    },
    "longt5": T5_LIKE,
    "longt5 that sees blocks from afar": T5_LIKE
    | {
        "model_type": "longt5",
        "encoder_attention_type": "transient-global",
        "local_radius": 5,
        "global_block_size": 4,
    },
}
"""Those that make their masks of what is padding: attention of their own, or of several kinds."""


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("model_type", "attention"),
    [*product(PAIRED, ("sdpa", "eager")), *product(OWN_PAIRS, ("eager",))],
)
@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")  # of a pair's own forward
def test_other_encoder_decoders_compute_what_their_own_forward_does(model_type, attention):
    model = read_config(model_type, {"model_type": model_type} | (PAIRED | OWN_PAIRS)[model_type])
    assert (default_task(model), model.num_layers) == ("seq2seq", 5)
    job = make_job(model=model, task="seq2seq", packing="none")
    program = build_program(job, make_strategy(attention=attention), CPU)
    assert len(decoder_blocks(program.model)) == model.num_layers
    batch = ragged(make_other_job("t5", model=model, task="seq2seq"), step=0)
    if hasattr(program.model, "final_logits_bias"):  # zeros, until a checkpoint says otherwise
        program.model.final_logits_bias.normal_()
    config = program.model.config
    plain = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    plain.load_state_dict(program.model.state_dict())
    seen = (batch.segments != 0).long()
    with torch.no_grad():
        loss = plain(input_ids=batch.inputs, attention_mask=seen, labels=batch.labels).loss
    assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)


def test_a_stack_that_nobody_can_count_is_refused():
    parts = {"encoder": {"model_type": "perceiver"}, "decoder": {"model_type": "bert"}}
    with pytest.raises(ModelConfigError, match="how many of its blocks read"):
        read_config("tiny", {"model_type": "encoder-decoder", **parts})


@pytest.mark.parametrize("task", ["causal-lm", "chat", "dpo"])
def test_no_task_leaves_an_encoder_out(task):
    model = make_other_model("bart")
    with pytest.raises(UnsupportedError, match="would leave out the encoder") as raised:
        for_task(model, task)
    assert raised.value.nearest == {"task": "seq2seq"}


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_texts_whose_end_is_looked_for_are_not_simulated(name):
    model = make_other_model(name)
    job = make_job(model=model, task="sequence-classification", packing="none")
    with pytest.raises(UnsupportedError, match="looks for the token that ends each text"):
        simulate(job, make_cluster("cuda"), make_strategy(attention="eager"))


def test_an_encoder_decoder_that_hides_in_a_way_of_its_own_is_refused():
    sizes = {"hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "vocab_size": 97}
    model = read_config("tiny", {"model_type": "prophetnet", **sizes})
    job = make_job(model=model, task="seq2seq", packing="none")
    with pytest.raises(UnsupportedError, match="neither takes masks from outside nor hides"):
        build_skeleton(job, make_strategy(attention="eager"))


@pytest.mark.parametrize(
    ("name", "job", "strategy", "facts"),
    [
        ("bert", {}, {"attention": "flash"}, ("flash", "sdpa")),
        ("t5", {}, {"attention": "efficient"}, ("efficient", "eager or sdpa")),
        ("switch", {}, {"attention": "sdpa"}, ("sdpa", "use eager")),
        ("bert", {"task": "seq2seq"}, {}, ("T5", "bert")),
    ],
)
def test_what_would_be_something_else_is_refused(name, job, strategy, facts):
    with pytest.raises(UnsupportedError) as raised:
        build_skeleton(make_other_job(name, **job), make_strategy(**strategy))
    assert all(fact in str(raised.value) for fact in facts)


def test_a_module_is_drawn_by_the_users_own_code():
    job = make_other_job("user_modules:own_weights")
    model = build_program(job, make_strategy(), CPU).model.model
    assert model[0].weight is model[1].weight
    assert model.shift.item() == 7.0
    torch.manual_seed(job.seed)
    assert torch.equal(make("user_modules:own_weights").model[0].weight, model[0].weight)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    held = build_program(make_other_job(CNN, precision="bf16"), make_strategy(), CPU).model
    assert {p.dtype for p in held.parameters()} == {torch.bfloat16}


def test_a_module_with_batch_statistics_runs_whole_and_is_refused_cut():
    """Its statistics are of the rows that run together: another micro-batch is another job."""
    job = make_other_job("user_modules:batch_normed")
    assert len(run(job, make_strategy(micro_batch=4))) == NUM_STEPS
    with pytest.raises(InputError, match="micro_batch=4"):
        run(job, make_strategy(micro_batch=2))


def test_a_loss_belongs_to_the_module_that_trains():
    name = "user_modules:weighted_cnn"
    steps = run(make_other_job(name), make_strategy(micro_batch=2))
    assert all(math.isfinite(loss) for loss, _ in steps)


def test_a_factory_hands_out_its_data():
    assert user_data("user_modules:large_cnn") == [1, 2, 3]
    assert user_data(CNN) is None
    inputs, labels = take_sample(CNN, 3)
    assert (inputs.shape, labels.shape) == ((3, 3, 8, 8), (3,))
    assert (
        task_of(make_other_job(CNN)).sample(make_other_job(CNN), make_strategy()).segments is None
    )


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("no_such_package:f", ("no_such_package", "cannot be imported")),
        ("user_modules:gone", ("user_modules", "gone")),
        ("user_modules:NUMBER", ("int", "function")),
        ("user_modules:fails", ("of pictures is away",)),
        ("user_modules:without_loss", ("without loss", "sample")),
        ("user_modules:no_module", ("list", "torch.nn.Module")),
        ("user_modules", ("package.module:factory",)),
    ],
)
def test_a_bad_factory_is_one_sentence(name, facts):
    with pytest.raises(InputError) as raised:
        make(name)
    assert "\n" not in str(raised.value)
    assert all(fact in str(raised.value) for fact in facts)


@pytest.mark.parametrize("name", ["user_modules:bad_sample", "user_modules:own_weights"])
def test_a_bad_sample_is_one_sentence(name):
    with pytest.raises(InputError, match=r"sample\(2\)"):
        take_sample(name, 2)
