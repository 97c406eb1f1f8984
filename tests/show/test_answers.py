"""The answer first: at most twelve lines of eighty columns, with both numbers and what to do."""

import itertools
import re
from types import SimpleNamespace

import pytest

from brimful.cli.main import main
from brimful.cost.estimate import tensor_limit_bytes
from brimful.hardware.gpus import load_cluster
from brimful.search.shop.values import DAY_S, Limits
from brimful.show.shop import _by_kind
from brimful.show.summary import Fact, Meter, Summary
from brimful.show.terminal import MOST_LINES as MOST_LINES_OF_SUMMARY
from brimful.show.terminal import summary_lines
from brimful.units import GIB
from samples import make_job

MOST_LINES, WIDTH = 12, 80
QUESTIONS = {
    "lora on one card": "plan llama-3.1-8b --gpus 4090 --method lora",
    "qlora of 70B on two": "plan llama-3.3-70b --gpus 2xa100 --method qlora --seq-len 2048",
    "a node": "plan qwen3-8b --gpus 8xh100 --seq-len 8192 --global-batch 64",
    "64 GPUs": "plan llama-3.1-70b --gpus 8x8xh100 --global-batch 256 --tokens 1T",
    "experts": "plan mixtral-8x7b --gpus 2x8xh100 --global-batch 64",
    "preferences": "plan qwen3-4b --gpus l4 --task dpo --method lora",
    "an old card": "plan llama-3.2-1b --gpus t4 --method qlora --seq-len 1024",
    "tight": "plan llama-3.1-8b --seq-len 8192 --global-batch 8 --gpus h200",
}


def answered(capsys, line):
    """Return the exit code of a command line, and the lines of its answer."""
    code = main(line.split())
    return code, capsys.readouterr().out.splitlines()


def paragraph(lines):
    return " ".join(" ".join(lines).split())


@pytest.mark.few(only=["preferences", "an old card"])  # cli/test_ways_out.py has one that is tight
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_plan_is_told_in_twelve_lines(capsys, question):
    code, lines = answered(capsys, f"{QUESTIONS[question]} --no-proof")
    assert len(lines) < MOST_LINES, lines  # a line more says that it is proven
    assert max(map(len, lines)) <= WIDTH
    word = lines[0].split()[0]
    assert (word, code) in {("FITS", 0), ("TIGHT", 1)}
    assert re.match(r"(memory |per GPU)   [█░]{20} [\d.]+ GiB of [\d.]+ GiB, predicted", lines[1])
    told = paragraph(lines)
    labels = ("settings", "speed", "run", "at most" if word == "FITS" else "instead", "next")
    for label in labels:
        assert any(line.startswith(f"{label} ") for line in lines), label
    assert re.search(r"tokens/s|pairs/s", told)


def test_what_was_asked_for_is_costed_and_what_was_not_is_a_billion_tokens(capsys):
    ask = "plan llama-3.2-1b --gpus h100 --seq-len 2048 --no-proof"
    told = paragraph(answered(capsys, f"{ask} --tokens 20B")[1])
    assert re.search(r"run 1,220,704 steps \(20B tokens\): [\d.]+ days, [\d,]+ USD \(", told)
    assert "run a billion tokens: " in paragraph(answered(capsys, ask)[1])


def test_what_nobody_typed_is_said_in_a_line_and_what_was_typed_is_not(capsys):
    ask = "estimate llama-3.2-1b --gpus h100"
    lines = answered(capsys, ask)[1]
    assumed = next(line for line in lines if line.startswith("assumed "))
    assert "sequence length 4,096, batch 1, bf16-mixed, adamw" in assumed
    typed = "--seq-len 512 --global-batch 4 --precision bf16 --optimizer sgd --beta1 0"
    assert not any(line.startswith("assumed ") for line in answered(capsys, f"{ask} {typed}")[1])


def test_what_is_assumed_takes_three_lines_and_all_of_them_with_v(capsys):
    ask = "estimate gemma-3-4b --gpus 2xrtx-3060 --card-memory 10GB --method lora"
    told = answered(capsys, ask)[1]
    start = next(place for place, line in enumerate(told) if line.startswith("assumed "))
    lines = [told[start], *itertools.takewhile(lambda line: line[:1] == " ", told[start + 1 :])]
    assert len(lines) == 3
    left = re.search(r", (\d) more \(all: -v\)$", paragraph(lines))
    whole = re.search(r"assumed (.*?) \(all: -v\)", paragraph(answered(capsys, f"{ask} -v")[1]))
    kept = paragraph(lines).removeprefix("assumed ")[: left.start() - len("assumed ")]
    assert all(words in whole[1] for words in kept.split(", "))
    assert len(whole[1]) > len(kept) + 20


def test_what_does_not_fit_says_by_how_much_and_what_would(capsys):
    code, lines = answered(
        capsys,
        "plan llama-3.1-8b --gpus 4090 --seq-len 2048 --offload none --loss-chunks 1 --no-proof",
    )
    assert (code, lines[0].split()[0]) == (1, "NO")
    assert re.match(r"memory    █{10}▶ [\d.]+ GiB of [\d.]+ GiB, short by [\d.]+ GiB", lines[1])
    told = paragraph(lines)
    assert "settings were predicted, none fits" in told
    assert "instead --gpus" in told
    assert re.search(
        r"or allow .*--method qlora \([\d.]+ GiB, [\d,]+ tokens/s\), predicted; each changes what",
        told,
    )
    assert len(lines) <= MOST_LINES


@pytest.mark.few(only=["estimate"])
@pytest.mark.parametrize("verb", ["estimate", "plan"])
def test_every_table_is_a_flag_away(capsys, verb):
    more = "--no-proof" if verb == "plan" else ""
    ask = f"{verb} llama-3.2-1b --gpus h100 {more}"
    short = answered(capsys, ask)[1]
    full = answered(capsys, f"{ask} -v")[1]
    assert full[: len(short)] == short
    for title in ("Inputs, with every default", "Peak of every phase (predicted)", "Assumptions"):
        assert title not in short
        assert title in full


@pytest.mark.long  # the answer that is tight above is decided by its replay
def test_an_estimate_fits_only_where_its_replay_does(capsys):
    ask = "estimate llama-3.1-8b --seq-len 8192 --global-batch 8 --gpus h200"
    settings = "--micro-batch 1 --ac full:9 --loss-chunks 1"
    code, lines = answered(capsys, f"{ask} {settings}")
    word = lines[0].split()[0]
    assert code == (word != "FITS")
    assert "largest" not in lines[0]
    assert re.search(r"at peak +\w", "\n".join(lines))


def test_a_market_is_told_in_twelve_lines(capsys):
    ask = "shop smollm2-360m --tokens 100M --kinds 4090,a100-40gb,h100 --max-gpus 2"
    code, lines = answered(capsys, ask)
    assert code == 0
    assert lines[0].startswith("ANSWER    full training of smollm2-360m, 101M tokens: the cheapest")
    assert lines[1].startswith("take      ")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    each = re.search(r"by kind (.*?) (settings|at best|prices|fewest) ", paragraph(lines))
    both = r"[\d.]+ (min|h) and [\d.]+ USD"
    assert re.fullmatch(rf"(\S+: {both}( \(fewest \d+: {both}\))?;? ?){{3}}", each[1])
    assert all(kind in each[1] for kind in ("rtx-4090", "a100-40gb", "h100-80gb"))
    assert "prices of data centres, up to" in paragraph(lines)


def test_every_kind_that_was_named_is_told_where_lines_are_few(capsys):
    """Of three kinds one had a line: those behind the settings were the first to be left out."""
    ask = "shop llama-3.2-1b --tokens 3B --kinds a100-80gb,h100,mi300x --max-gpus 16"
    code, lines = answered(capsys, f"{ask} --money-budget 3000usd --global-batch 64")
    assert code == 0
    each = re.search(r"by kind (.*?) (settings|at best|prices|or|fewest) ", paragraph(lines))
    assert all(kind in each[1] for kind in ("mi300x", "a100-80gb", "h100-80gb"))


def test_the_fewest_stand_beside_a_number_that_was_chosen_in_short_too():
    """Of five kinds the numbers were the tool's choice, and the other one was nowhere."""
    kinds = ("b200", "h200", "mi300x")
    best = [_option(kind, 64, 2.0) for kind in kinds]
    found = SimpleNamespace(
        by_kind=best,
        fewer=[_option("h200", 8, 13.0)],
        fewest=(),
        alone=(),
        dropped=(),
        machines=(),
    )
    (fact,) = _by_kind(make_job(), found, Limits(21 * DAY_S))
    assert "8x8xh200: 2 days and 100 USD (8: 13 days);" in fact.short
    assert "(or 8xh200: 13 days and 100 USD)" in fact.text


def _option(kind, num, days):
    gpus = f"8x8x{kind}" if num > 8 else f"{num}x{kind}"
    return SimpleNamespace(
        gpus=gpus, kind=kind, num_gpus=num, predicted_days=days, predicted_usd=100.0,
        predicted_host_bytes=0,
    )  # fmt: skip


def test_of_too_many_facts_the_last_are_left_out():
    facts = tuple(Fact(f"fact {n}", "word " * 20) for n in range(9))
    lines = [str(line) for line in summary_lines(Summary("FITS", "this", Meter(1, 2, "ok"), facts))]
    assert len(lines) == MOST_LINES_OF_SUMMARY - 1
    assert [line[:6] for line in lines[2:]] == [
        "fact 0",
        "      ",
        "fact 1",
        "      ",
        "fact 2",
        "      ",
    ]
    assert all(len(line) <= WIDTH for line in lines)


@pytest.mark.parametrize(
    ("used", "bar"), [(0, "░" * 20), (50, "█" * 10 + "░" * 10), (100, "█" * 20)]
)
def test_a_bar_shows_the_share_that_is_used(used, bar):
    line = str(summary_lines(Summary("FITS", "this", Meter(used, 100, "predicted"), ()))[1])
    assert line == f"memory    {bar} {used} B of 100 B, predicted"


def test_what_is_too_much_runs_over_the_bar():
    line = str(summary_lines(Summary("NO", "this", Meter(150, 100, "predicted"), ()))[1])
    assert line == f"memory    {'█' * 10}▶ 150 B of 100 B, short by 50 B, predicted"


def test_a_no_of_one_strategy_says_what_would_fit_and_what_others_take(capsys):
    ask = "estimate qwen2.5-0.5b --gpus rtx-3090 --seq-len 2048 --micro-batch 8"
    code, lines = answered(capsys, ask)
    told = paragraph(lines)
    assert (code, len(lines) <= MOST_LINES, lines[0].split()[0]) == (1, True, "NO")
    found = re.search(r"would fit (.*?): ([\d.]+) GiB of ([\d.]+) GiB, [\d,]+ tokens/s", told)
    assert float(found[2]) <= float(found[3])
    assert re.search(
        r"or with .*loss in 16 chunks: [\d.]+ GiB; all 24 layers checkpointed: [\d.]+ GiB", told
    )
    assert "speed " not in told, "nothing runs that does not fit"
    assert "next brimful plan with the same flags" in told


@pytest.mark.parametrize(
    "ask", ["estimate llama-3.1-8b --gpus h100", "plan llama-3.1-8b --gpus 4090 --offload none"]
)
def test_a_no_says_what_its_peak_is_made_of(capsys, ask):
    code, lines = answered(capsys, ask)
    assert code == 1
    (line,) = [line for line in lines if line.startswith("at peak ")]
    assert re.search(r"(optimizer state|parameters) [\d.]+(, | GiB)", line)


def test_a_no_says_what_the_host_takes_of_what_it_has(capsys):
    ask = "llama-3.1-8b --gpus 4090 --no-proof --offload optimizer --precision bf16-mixed"
    code, lines = answered(capsys, f"plan {ask} --host-memory 512GB")
    assert code == 1
    assert re.search(r"host +takes [\d.]+ GiB to train.*; it has 476.84 GiB", paragraph(lines))


def test_a_no_without_any_settings_names_another_gpu_and_what_could_be_allowed(capsys):
    code, lines = answered(capsys, "estimate llama-3.1-8b --gpus h100")
    told = paragraph(lines)
    assert code == 1
    card = re.search(r"instead --gpus h200 (--\S+ \S+ )*would fit", told)
    assert card
    assert "--method lora would fit" in told
    here = re.search(r"would fit (--\S+ \S+ )*--offload \w+: [\d.]+ GiB of .* on the host", told)
    assert here
    assert here.start() < card.start(), "one's own card comes first"


def test_a_no_names_the_flags_that_fit_on_the_same_card(capsys):
    ask = "estimate qwen2.5-0.5b --gpus rtx-3060 --seq-len 4096 --micro-batch 4 --global-batch 4"
    code, lines = answered(capsys, ask)
    assert code == 1
    told = re.search(r"would fit ((--\S+ \S+ ?)+): ", paragraph(lines))
    assert "--gpus" not in told[1]
    assert answered(capsys, f"{ask} {told[1]}")[1][0].startswith("FITS")


def test_a_question_about_a_stage_of_zero_gets_its_neighbours(capsys):
    ask = "estimate llama-3.2-1b --gpus 8xa100-80gb --zero 2 --global-batch 8"
    told = paragraph(answered(capsys, ask)[1])
    neighbours = r"or with ZeRO-3 [\d.]+ [GM]iB less, ZeRO-1 [\d.]+ GiB more"
    assert re.search(neighbours, told)
    assert "at peak" in told


def test_each_gpu_of_a_pipeline_is_told(capsys):
    ask = "estimate llama-3.2-3b --gpus 4xh100 --pp 4 --global-batch 8 --seq-len 2048"
    told = paragraph(answered(capsys, ask)[1])
    assert re.search(
        r"each GPU of the pipeline's 4, tensors in order: 1: [\d.]+ GiB, 2: .* 4: ", told
    )
    assert "27% of a step waits as it fills and drains" in told  # 3 of 8 + 3


def test_where_no_known_gpu_holds_it_the_number_that_has_room_for_its_states_is_told(capsys):
    told = paragraph(answered(capsys, "estimate llama-3.1-405b --gpus 8xh100")[1])
    number, states = re.search(
        r"needs ([\d,]+) of these GPUs or more: .*? ([\d.]+) TiB", told
    ).groups()
    assert float(states) == pytest.approx(405.9e9 * 16 / 2**40, rel=0.01)
    assert int(number) == pytest.approx(float(states) * 1024 / 78.45, abs=1)


def test_a_host_that_is_too_small_has_its_own_bar_and_the_gpus_keep_theirs(capsys):
    ask = "estimate qwen3-0.6b --gpus 8xh100-80gb --host-memory 2GiB --seq-len 512"
    code, lines = answered(capsys, ask)
    assert (code, lines[0].split()[0]) == (1, "NO")
    assert re.match(r"per GPU   [█░]{20} [\d.]+ GiB of [\d.]+ GiB, predicted", lines[1])
    assert re.match(r"host      █{10}▶ [\d.]+ GiB of 2.00 GiB, short by [\d.]+ GiB", lines[2])
    assert lines[3].startswith("instead   the host is short, not the GPUs")
    assert re.match(r"saving    Brimful's own takes [\d.]+ GiB of the host", lines[5])


def test_a_recipe_that_was_typed_is_laid_beside_the_usual_one(capsys):
    ask = "plan gpt2 --gpus rtx-3090 --seq-len 512 --no-proof"
    told = paragraph(answered(capsys, f"{ask} --precision bf16")[1])
    assert re.search(r"against bf16-mixed: [\d.]+ GiB more, \d+% slower", told)
    assert "against" not in paragraph(answered(capsys, ask)[1])


def test_what_saves_nothing_is_not_offered(capsys):
    ask = "estimate qwen2.5-1.5b --gpus 2xrtx-3090 --method lora --zero 0 --micro-batch 16"
    told = paragraph(answered(capsys, ask)[1])
    assert "DDP over 2 GPUs (a whole copy on each)" in told
    offered = re.search(r"or with (.*?) assumed", told)[1]
    peaks = [float(size) for size in re.findall(r": ([\d.]+) GiB", offered)]
    assert peaks == sorted(peaks)
    assert "ZeRO-1" not in offered, "adapters' moments are nothing"


def test_money_that_is_short_says_for_how_many_tokens_it_is_enough(capsys):
    ask = "shop gpt2 --tokens 100B --money-budget 5usd --gpus rtx-4090 --max-gpus 1"
    told = paragraph(answered(capsys, ask)[1])
    usd = float(re.search(r"and ([\d,.]+) USD at", told)[1].replace(",", ""))
    enough = float(re.search(r"5.00 USD pay for ([\d.]+)M tokens there", told)[1])
    assert enough == pytest.approx(100_000 * 5 / usd, rel=0.02)


def test_what_was_chosen_is_told_against_what_is_usual(capsys):
    ask = "estimate tinyllama-1.1b --gpus rtx-4090 --seq-len 512 --ac full"
    plain = answered(capsys, f"{ask} --json")[1]
    _, lines = answered(capsys, f"{ask} --optimizer sgd")
    told = paragraph(lines)
    assert "against" not in plain
    more = re.search(r"against adamw: ([\d.]+) GiB more", told)
    # a second moment of 4 bytes for each parameter, beside the momentum that SGD has too
    assert float(more[1]) == pytest.approx(1_100_048_384 * 4 / 2**30, rel=0.02)
    told = paragraph(answered(capsys, f"{ask} --method lora --lora-rank 64")[1])
    assert re.search(r"rank 16: [\d.]+ MiB less", told)
    assert re.search(r"full training: [\d.]+ GiB more", told)


@pytest.mark.long  # a sum of bytes over tp and pp, which tests/cost holds
def test_what_is_not_sharded_is_shared_by_all_devices_however_the_model_is_cut(capsys):
    ask = "plan llama-3.1-8b --gpus 2x4090 --optimizer adafactor --precision bf16 --seq-len 4096"
    told = paragraph(answered(capsys, f"{ask} --global-batch 16 --no-proof")[1])
    assert "pipeline parallel 2" in told
    # 8.03B parameters of 2 bytes, as many of gradients: half on each.
    held = re.search(r"a trainer that does would hold ([\d.]+) GiB", told)
    assert float(held[1]) == pytest.approx(8.03e9 * 4 / 2 / 2**30, rel=0.02)


def test_a_latent_cache_is_whole_on_each_gpu(capsys, monkeypatch):
    monkeypatch.setattr("brimful.cli.inference.find_spec", lambda _name: None)
    ask = "estimate kimi-k2 --task inference --weights-format int4 --gpus 8xb200 --seq-len 32768"
    told = paragraph(answered(capsys, ask)[1])
    assert "KV cache 2.14 GiB whole on each: it is one latent of all heads" in told
    tokens, texts = re.search(
        r"at most about ([\d,]+) tokens .*, (\d+) texts of 32,768", told
    ).groups()
    # What the weights leave of a card, and 61 layers of 512 + 64 numbers of two bytes a token.
    room = (177.70 - 511.27 / 8) * 2**30 / (61 * 576 * 2)
    assert float(tokens.replace(",", "")) == pytest.approx(room, rel=0.001)
    assert int(texts) == int(room // 32768)


def test_rules_are_of_the_gpus_that_were_asked_about(capsys):
    lines = answered(capsys, "rules smollm2-135m --gpus 8xh100 --seq-len 512")[1]
    assert "on 8 x H100" in paragraph(lines[:2])
    assert any(line.startswith("checked   on one of them") for line in lines)


def test_phases_that_were_asked_for_are_told(capsys):
    ask = "simulate smollm2-135m --gpus a10 --seq-len 256"
    assert "phases " not in paragraph(answered(capsys, ask)[1])
    told = paragraph(answered(capsys, f"{ask} --phases eval,save")[1])
    assert re.search(r"phases tensors in load .* GiB|MiB, step 1 .*, eval .*, save ", told)


@pytest.mark.long  # the README shows the line, search/test_beside.py what holds
def test_what_does_not_fit_is_told_how_long_a_text_may_be(capsys):
    ask = "plan devstral-small-24b --gpus 4090 --method qlora --global-batch 8 --no-proof --seq-len"
    told = paragraph(answered(capsys, f"{ask} 16384")[1])
    tokens = re.search(r"at most ([\d,]+) tokens a text", told)[1].replace(",", "")
    assert int(tokens) < 16384
    assert main(f"{ask} {tokens}".split()) == 0


def test_what_lacks_lines_is_said_shortly_before_anything_is_left_out():
    facts = (
        Fact("speed", "fast " * 20, "fast"),
        Fact("run", "long " * 20, "long"),
        Fact("why", "so", "no"),
    )

    def told(most):
        summary = Summary("FITS", "this", Meter(1, 2, "ok"), facts)
        return [str(line) for line in summary_lines(summary, most)][2:]

    assert len(told(9)) == 5
    assert told(6)[2:] == ["run       long", "why       so"]
    assert told(5)[2:] == ["run       long"]  # the speed keeps its range before what explains
    assert told(4) == ["speed     fast", "run       long"]


def test_what_explains_yields_to_what_is_asked_for():
    labels = ("settings", "speed", "run", "limits", "against", "why", "at most", "if tight")
    facts = tuple(Fact(label, "so") for label in labels)
    left = []
    for most in range(10, 2, -1):
        summary = Summary("FITS", "this", Meter(1, 2, "ok"), facts)
        left.append([str(line)[:10].strip() for line in summary_lines(summary, most)][2:])
    gone = [({*more} - {*fewer}).pop() for more, fewer in itertools.pairwise(left)]
    assert gone == ["if tight", "why", "against", "at most", "speed", "settings", "limits"]


def test_the_longest_text_is_told_beside_a_deadline_that_is_missed(capsys):
    ask = "plan llama-3.2-1b --gpus rtx-5090 --method qlora --lora-rank 32 --seq-len 4096"
    so = f"{ask} --no-proof --global-batch 16 --tokens 300M --deadline 1h"
    told = paragraph(answered(capsys, so)[1])
    assert re.search(r"too late for the deadline of 60 min", told)
    assert re.search(r"at most [\d,]+ tokens a text", told)


def test_a_prompt_that_is_too_long_for_one_forward_is_read_in_chunks(capsys):
    ask = "estimate llama-3.3-70b --task inference --weights-format int4 --gpus 2x3090 --seq-len"
    code, told = answered(capsys, f"{ask} 16384")
    told = paragraph(told)
    assert code == 2
    assert "instead --prompt-len 8192 would fit (prompts read in chunks)" in told
    assert "1 texts of 16,384" in told
    assert main(f"{ask} 16384 --prompt-len 8192".split()) == 0


def test_what_a_forward_takes_is_said_to_be_unknown(capsys, monkeypatch):
    monkeypatch.setattr("brimful.cli.inference.find_spec", lambda _name: None)  # without torch
    ask = "estimate kimi-k2 --task inference --weights-format int4 --gpus 8xb200 --seq-len 32768"
    told = paragraph(answered(capsys, ask)[1])
    assert re.search(r"unknown what a forward of \w+ takes beside these; [\d.]+ GiB are left", told)


@pytest.mark.torch
def test_what_a_forward_of_one_gpu_takes_bounds_that_of_several(capsys, tmp_path):
    config = pytest.importorskip("transformers").AutoConfig.for_model(
        "deepseek_v3", num_hidden_layers=2, first_k_dense_replace=1, hidden_size=1024,
        intermediate_size=2048, moe_intermediate_size=512, n_routed_experts=8, n_group=1,
        topk_group=1, num_experts_per_tok=2, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=32000,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    ask = f"estimate {tmp_path} --task inference --weights-format bf16 --gpus 2xt4"
    code, lines = answered(capsys, f"{ask} --seq-len 4096 --prompt-len 2048")
    told = paragraph(lines)
    assert code == 0
    forward = float(re.search(r"forward ([\d.]+) MiB at most", told)[1]) / 1024
    total = float(re.search(r"([\d.]+) (?:GiB|MiB) of [\d.]+ GiB, at most", told)[1])
    total = total / 1024 if "MiB of" in told else total
    weights = float(re.search(r"weights ([\d.]+) MiB evenly", told)[1]) / 1024
    assert total > weights / 2 + forward > forward > 0
    # What one forward of the whole prompt is too much for, one of 512 tokens is not.
    card = load_cluster("t4", memory_limit_bytes=None)
    outside = (card.device.usable_bytes - tensor_limit_bytes(card)) / GIB
    limit = f"--memory-limit {int(1024 * (total + outside))}MiB"
    code, lines = answered(capsys, f"{ask} --seq-len 4096 {limit}")
    told = paragraph(lines)
    assert (code, lines[0].split()[0]) == (2, "UNKNOWN")
    chunked = float(re.search(r"--prompt-len 512 would fit .*?: ([\d.]+) MiB of", told)[1]) / 1024
    assert weights / 2 < chunked < total
    assert "speed not known" in told  # of bf16 on a T4, which has no units for it
    assert "of these GPUs" not in told


def test_a_reference_is_named_whatever_its_size(capsys):
    ask = "estimate llama-3.2-1b --task dpo --gpus h100-80gb --seq-len 512 --reference resident"
    told = paragraph(answered(capsys, ask)[1])
    assert re.search(r"at peak .*, reference [\d.]+ GiB", told)
