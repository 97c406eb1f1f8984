"""Direct preference optimisation takes the steps of a plain loop, wherever its reference is."""

from copy import deepcopy
from functools import cache

import msgspec
import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoConfig, AutoModelForCausalLM

from brimful.build.assemble import build_program
from brimful.build.batch import ANSWER, IGNORE_INDEX, blank, count_targets
from brimful.build.step import evaluate, train_step
from brimful.build.tasks.dpo import first_scores
from brimful.errors import InputError, UnsupportedError
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Preference, check_job
from brimful.values.strategy import default_reference
from pairs import PREFERENCE, cut_pairs, make_lora, make_pair_job, make_pairs
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 5
SMOOTHED = Preference(beta=0.3, label_smoothing=0.1)
SWITCHES = [
    {"micro_batch": 4},
    {"micro_batch": 1},
    {"attention": "eager"},
    {"activation_checkpointing": "full", "loss_chunks": 3},
    {"activation_checkpointing": "selective", "micro_batch": 4},
]
LORA = make_lora()
VARIANTS = {
    "full": ({}, ("resident", "offloaded", "precomputed")),
    "lora": (LORA, ("resident", "offloaded", "adapters-off", "precomputed")),
    "embedding too": (
        make_lora(trained_modules=("embed_tokens",)),
        ("resident", "adapters-off"),
    ),
    "qlora": (make_lora("qlora", base="nf4"), ("resident", "adapters-off")),
    "half base": (
        {**make_lora(base="bf16"), "precision": "bf16-mixed"},
        ("resident", "offloaded", "adapters-off"),
    ),
}


def plain_scores(model, batch):
    """Sum of the log-probabilities of each answer, by the model's own forward: [pairs, 2]."""
    rows, segments = batch.inputs.flatten(0, 1), batch.segments.flatten(0, 1)
    logits = model(input_ids=rows, attention_mask=(segments != 0).long()).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    return (chosen * (segments[:, 1:] == ANSWER)).sum(1).view(-1, 2)


def plain_loss(preference, scores, reference):
    """TRL's ``sigmoid`` loss, as ``DPOTrainer._compute_loss`` (1.16) writes it; smoothed as in
    Mitchell's note on conservative DPO. ``test_trl_says_the_same`` compares with TRL itself."""
    chosen_logratios, rejected_logratios = (scores - reference).unbind(1)
    delta = preference.beta * (chosen_logratios - rejected_logratios)
    share = preference.label_smoothing
    return (-(1 - share) * logsigmoid(delta) - share * logsigmoid(-delta)).mean()


def plain_model(program):
    config = deepcopy(program.model.config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(program.model.state_dict())
    return model.train()


@cache
def expected(architecture, preference):
    """Train with whole batches; returns (loss, gradient norm) of every step."""
    job = make_pair_job(architecture, preference=preference)
    model = plain_model(build_program(job, make_strategy(reference="resident"), CPU))
    reference = deepcopy(model)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8)
    steps = []
    for step in range(NUM_STEPS):
        batch = make_pairs(job, step=step)
        with torch.no_grad():
            before = plain_scores(reference, batch)
        loss = plain_loss(preference, plain_scores(model, batch), before)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        steps.append((float(loss.detach()), float(norm)))
    return steps


def run(job, strategy, *, num_steps=NUM_STEPS):
    """Train; returns (loss, gradient norm) of every step."""
    program = build_program(job, strategy, CPU)
    first = build_program(job, strategy, CPU) if strategy.reference == "precomputed" else None
    results = []
    for step in range(num_steps):
        batch = make_pairs(job, step=step)
        if first is not None:
            batch = batch._replace(reference=first_scores(first, batch))
        batches = cut_pairs(batch, strategy.micro_batch)
        made = train_step(
            program,
            batches,
            num_targets=count_targets(batches),
            learning_rate=job.learning_rate,
        )
        results.append((float(made.loss), float(made.grad_norm)))
    return results


@pytest.mark.few(3)
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_every_strategy_takes_the_steps_of_the_plain_loop(switches):
    steps = run(make_pair_job(), make_strategy(reference="resident", **switches))
    for (loss, norm), (plain, plain_norm) in zip(steps, expected("llama", PREFERENCE), strict=True):
        assert loss == pytest.approx(plain, rel=1e-5)
        assert norm == pytest.approx(plain_norm, rel=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_smoothed_labels_are_conservative_dpo(architecture):
    job = make_pair_job(architecture, preference=SMOOTHED)
    steps = run(job, make_strategy(reference="resident"))
    for (loss, norm), (plain, plain_norm) in zip(
        steps, expected(architecture, SMOOTHED), strict=True
    ):
        assert loss == pytest.approx(plain, rel=1e-5)
        assert norm == pytest.approx(plain_norm, rel=1e-4)
    assert len({loss for loss, _ in steps}) == NUM_STEPS


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", VARIANTS)
def test_where_the_reference_is_changes_no_loss(kind):
    fields, references = VARIANTS[kind]
    job = make_pair_job(**fields)
    num_steps = NUM_STEPS if kind in {"full", "lora"} else 2
    first, *others = (
        run(job, make_strategy(reference=reference), num_steps=num_steps)
        for reference in references
    )
    assert first[0][0] == pytest.approx(0.6931472, abs=1e-6)
    assert abs(first[-1][0] - first[0][0]) > 1e-5
    for steps in others:
        for (loss, norm), (same, same_norm) in zip(steps, first, strict=True):
            assert loss == pytest.approx(same, abs=1e-5)
            assert norm == pytest.approx(same_norm, rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_trl_says_the_same(tmp_path):
    """Loss to 1e-6 and every gradient; run with TRL 1.16.0, which is not among our packages."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.models.WordLevel({str(n): n for n in range(97)}, unk_token="0")  # noqa: S106
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
    tokenizer.eos_token, tokenizer.pad_token = "96", "0"
    job = make_pair_job()
    program = build_program(job, make_strategy(reference="resident"), CPU)
    reference = plain_model(program)
    moved(program)
    model, batch = plain_model(program), make_pairs(job)
    examples = [examples_of(rows, marks) for rows, marks in zip(*batch[::2], strict=False)]
    trainer = trl.DPOTrainer(
        model=model,
        ref_model=reference,
        args=trl.DPOConfig(
            output_dir=str(tmp_path),
            beta=PREFERENCE.beta,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_length=None,
        ),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": "1", "chosen": "2", "rejected": "3"}] * 4
        ),
        processing_class=tokenizer,
    )
    collate = trl.trainer.dpo_trainer.DataCollatorForPreference(pad_token_id=0)
    loss = trainer._compute_loss(trainer.model.train(), collate(examples), return_outputs=False)
    loss.backward()
    ours = program.root(program, batch, 4)
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(loss.detach()), abs=1e-6)
    assert float(loss.detach()) != pytest.approx(0.6931472, abs=1e-5)
    theirs = dict(trainer.model.named_parameters())
    for name, parameter in program.model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def examples_of(rows, marks):
    question = rows[0][marks[0] == 1].tolist()
    answers = [row[mark == ANSWER].tolist() for row, mark in zip(rows, marks, strict=True)]
    return dict(
        zip(("prompt_ids", "chosen_ids", "rejected_ids"), (question, *answers), strict=True)
    )


@torch.no_grad()
def moved(program):
    """Move the model away from its reference."""
    generator = torch.Generator().manual_seed(5)
    for parameter in program.model.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("reference", ["resident", "offloaded"])
def test_a_second_model_is_frozen_and_stays_as_it_was(reference):
    job = make_pair_job(**LORA)
    program = build_program(job, make_strategy(reference=reference), CPU)
    before = {name: p.clone() for name, p in program.reference.model.named_parameters()}
    batch = make_pairs(job)
    train_step(program, [batch], num_targets=4, learning_rate=1e-2)
    assert not [n for n in before if "lora" in n]
    for name, parameter in program.reference.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert not parameter.requires_grad
        assert parameter.grad is None
    model = dict(program.model.named_parameters())
    shared = {p.untyped_storage().data_ptr() for p in model.values()}
    assert not shared & {p.untyped_storage().data_ptr() for p in program.reference.parameters()}


def test_adapters_train_again_once_the_reference_has_been_asked():
    job = make_pair_job(**LORA)
    program = build_program(
        job, make_strategy(reference="adapters-off", activation_checkpointing="full"), CPU
    )
    trained = {n for n, p in program.model.named_parameters() if p.requires_grad}
    program.root(program, make_pairs(job), 4).backward()
    assert {n for n, p in program.model.named_parameters() if p.requires_grad} == trained
    assert {n for n, p in program.model.named_parameters() if p.grad is not None} == trained
    assert program.model.training


def test_a_pair_that_does_not_count_changes_nothing():
    job = make_pair_job()
    program = build_program(job, make_strategy(reference="resident"), CPU)
    moved(program)
    whole = make_pairs(job)
    masked = whole._replace(labels=torch.tensor([0, IGNORE_INDEX, 0, IGNORE_INDEX]))
    kept = type(whole)(*(None if part is None else part[::2] for part in whole))
    assert count_targets([masked]) == 2
    assert evaluate(program, [masked]) == pytest.approx(evaluate(program, [kept]), rel=1e-5)
    assert float(program.root(program, blank(whole), 1).detach()) == 0.0


def test_questions_and_padding_are_not_scored():
    """Other tokens behind an answer, or a question that reads otherwise in its labels only."""
    job = make_pair_job()
    program = build_program(job, make_strategy(reference="resident"), CPU)
    batch = make_pairs(job)
    noise = torch.where(batch.segments == 0, torch.full_like(batch.inputs, 7), batch.inputs)
    scores = first_scores(program, batch)
    torch.testing.assert_close(first_scores(program, batch._replace(inputs=noise)), scores)
    none = first_scores(program, batch._replace(segments=batch.segments.clamp(max=1)))
    assert not none.any()
    torch.testing.assert_close(scores, plain_scores(plain_model(program), batch).detach())


@pytest.mark.parametrize(
    ("job", "strategy", "facts"),
    [
        ({}, {"reference": "none"}, ("reference=none", "use resident")),
        (LORA, {"reference": "none"}, ("use adapters-off",)),
        ({}, {"reference": "adapters-off"}, ("method=full has none", "precomputed")),
        (
            make_lora("qlora", base="nf4"),
            {"reference": "offloaded"},
            ("offloaded of a base in nf4", "adapters-off"),
        ),
        ({}, {"reference": "offloaded", "zero": 3, "dp_shard": 2}, ("zero=3", "or zero=0")),
        ({}, {"reference": "resident", "tp": 2}, ("tp=2", "use tp=1")),
        ({}, {"reference": "resident", "loss_chunks": 97}, ("97", "96 tokens")),
    ],
)
def test_what_cannot_be_is_refused(job, strategy, facts):
    with pytest.raises((InputError, UnsupportedError)) as raised:
        check_strategy(make_pair_job(**job), make_strategy(**strategy))
    assert all(fact in str(raised.value) for fact in facts)


def test_other_tasks_have_no_reference():
    with pytest.raises(InputError, match="reference=resident does not go with task=causal-lm"):
        check_strategy(make_job(), make_strategy(reference="resident"))
    assert default_reference(make_job()) == "none"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"preference": None}, ("task=dpo needs a preference",)),
        ({"preference": Preference(beta=0.0, label_smoothing=0.0)}, ("beta=0.0", "0.1")),
        ({"preference": Preference(beta=0.1, label_smoothing=0.5)}, ("label_smoothing=0.5",)),
        ({"packing": "documents"}, ("packing=documents", "use none")),
        ({"task": "chat"}, ("task=chat has a preference", "leave it out")),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(changes, facts):
    job = make_pair_job()
    assert check_job(job) is job
    with pytest.raises(InputError) as raised:
        check_job(msgspec.structs.replace(job, **changes))
    assert all(fact in str(raised.value) for fact in facts)


def test_a_pair_is_two_sequences():
    job = make_pair_job(global_batch=4, seq_len=24)
    assert job.tokens_per_step == 2 * make_job(global_batch=4, seq_len=24).tokens_per_step


def test_the_reference_of_weights_on_disk_is_what_they_were(tmp_path):
    job = make_pair_job()
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    job = msgspec.structs.replace(job, weights=str(tmp_path))
    program = build_program(job, make_strategy(reference="resident"), CPU)
    stored = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, parameter in program.reference.model.named_parameters():
        assert torch.equal(parameter, stored[name])
