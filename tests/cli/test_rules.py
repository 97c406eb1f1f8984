"""``brimful rules`` and ``brimful plan --explain`` as a user meets them."""

import io
import json
import random
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from brimful.cli.main import main
from brimful.rules.table import RULES

RULE = ("rules", "llama-3.2-1b", "--gpus", "a100-40gb", "--seq-len", "1024")
PLAN = (
    "plan", "llama-3.2-1b", "--gpus", "a100-40gb", "--seq-len", "2048", "--global-batch", "8",
    "--no-proof",
)  # fmt: skip


def test_every_rule_has_a_row_and_no_line_is_too_long(brimful):
    said = brimful(*RULE, "-v")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    for rule in RULES:
        assert any(line.startswith(rule.key) for line in lines), rule.key
    assert lines[-1].startswith(f"{len(RULES)} rules: ")


def test_the_rules_of_the_method_come_first_and_full_training_is_no_lora(brimful):
    said = brimful(*RULE, "--method", "qlora")
    lines = said.out.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert re.search(r"states +\d\.\d\d bytes a parameter", said.out)
    first = next(line for line in lines if line.startswith(("wrong", "holds", "in part")))
    assert "LoRA" in first
    asked = " ".join(brimful(*RULE, "--method", "qlora", "--about", "16 B per").out.split())
    assert "16 B per parameter. Here: 16 B per parameter held" in asked
    assert "holds only when: every parameter trains, and with method=qlora few do" in asked
    assert brimful(*RULE, "--about", "nothing of the kind").code == 2


def test_what_was_asked_about_is_told_alone_and_that_nothing_fits_is_said(brimful):
    asked = ("rules", "qwen3-8b", "--gpus", "a100-80gb", "--seq-len", 4096, "--about")
    told = " ".join(brimful(*asked, "checkpoint").out.split())
    assert "of 2 rules on 'checkpoint' 1 holds, 1 is wrong" in told
    assert "Here: 93 % predicted. wrong: 14 % too low" in told
    assert "(ckpt-costs)" in told
    assert "GPT-3" not in told
    assert "fits NO: " in told
    assert "short by " in told
    assert " GB" not in told.replace("80GB", "")
    assert "fits NO" not in brimful(*asked[:2], "--gpus", "b300", *asked[-1:], "checkpoint").out


@pytest.fixture(scope="module")
def told():
    """What all rules come to, asked once."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert main([*RULE, "--json"]) == 0
    return json.loads(said.getvalue())


def test_rules_are_one_json_object_with_its_inputs(told):
    assert told["schema"] == "brimful.rules/1"
    assert told["job"]["seq_len"] == 1024
    assert told["cluster"]["name"] == "a100-40gb"
    assert [row["key"] for row in told["rules"]] == [rule.key for rule in RULES]
    assert {row["verdict"] for row in told["rules"]} <= {
        "holds", "holds only when", "wrong", "not checkable here", "unknown",
    }  # fmt: skip


def test_the_micro_batch_is_that_of_every_check(brimful, told):
    more = json.loads(brimful(*RULE, "--micro-batch", "4", "--json").out)
    one, four = ({row["key"]: row for row in said["rules"]} for said in (told, more))
    assert one["times-1.5"]["ours"] != four["times-1.5"]["ours"]
    assert one["weights-7b"] == four["weights-7b"]


DRAWN = random.Random(20).sample(  # noqa: S311 - jobs, not secrets
    [
        ("tinyllama-1.1b", "--gpus", "8xa100-40gb"),
        ("qwen2.5-0.5b", "--gpus", "2x8xa100-80gb", "--seq-len", "1024"),
        ("olmo-2-7b", "--gpus", "4xh100-80gb", "--seq-len", "512"),
        ("gpt2-medium", "--gpus", "v100-16gb"),
        ("smollm2-135m", "--gpus", "16x8xa100-80gb", "--seq-len", "512"),
        ("qwen3-0.6b", "--gpus", "2xl4", "--method", "lora", "--seq-len", "1024"),
    ],
    3,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("job", DRAWN, ids=lambda job: job[0])
def test_rules_take_the_gpus_they_were_given_and_agree_with_the_plan(brimful, job):
    rules = json.loads(brimful("rules", *job, "--json").out)
    plan = json.loads(brimful("plan", *job, "--no-proof", "--explain", "--json").out)
    assert rules["cluster"] == plan["cluster"]
    for name, value in rules["plan"].items():
        assert value == plan[name], name
    order = next(row["ours"] for row in rules["rules"] if row["key"] == "order")
    switches = [row["switch"] for row in plan["explain"]["ledger"]]
    assert order == (", ".join(switches) or "the naive run is the plan")


@pytest.mark.long  # show/test_answers.py reads what is checked
def test_rules_say_what_they_are_checked_on(brimful):
    told = brimful("rules", "smollm2-135m", "--gpus", "2x8xa100-80gb", "--seq-len", "256", "-v")
    assert told.code == 0
    assert "one a100-80gb" in told.out
    assert "plan for 2x8xa100-80gb" in " ".join(told.out.split())


def test_a_misspelt_gpu_is_one_sentence(brimful):
    said = brimful("rules", "gpt2", "--gpus", "a100-4gb")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "a100-40gb" in said.err


@pytest.mark.long  # test_layers.py imports its modules without torch
def test_rules_import_no_torch():
    code = (
        f"import sys; from brimful.cli.main import main; main({list(RULE)!r}); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_explain_adds_the_ledger_the_tree_and_the_gains(brimful):
    asked = (*PLAN, "--micro-batch", "2")  # so that the search is short
    plain, explained = brimful(*asked), brimful(*asked, "--explain")
    assert explained.code == plain.code == 0
    assert explained.out.startswith(plain.out.rstrip("\n"))
    assert max(map(len, explained.out.splitlines())) <= 100
    for heading in ("Savings ledger", "Decision tree", "One switch of the plan", "If you allow it"):
        assert heading in explained.out
        assert heading not in plain.out


@pytest.mark.long  # its fields are read by test_rules_take_the_gpus above
def test_explain_as_json_ends_at_the_plan(brimful):
    told = json.loads(brimful(*PLAN, "--explain", "--json").out)
    why = told["explain"]
    assert list(why) == ["ledger", "decisions", "alternatives", "gains"]
    last = why["ledger"][-1]
    assert last["peak_after_bytes"] == told["predicted_peak_allocated_bytes"]
    assert last["step_after_s"] == pytest.approx(told["predicted_step_s"])
    assert "explain" not in json.loads(brimful(*PLAN, "--json").out)


def test_what_a_parameter_takes_here_and_what_holds_comes_first(brimful):
    told = brimful("rules", "llama-3.2-3b", "--gpus", "a100-80gb", "--about", "16 bytes").out
    assert "16.00 bytes a parameter, 47.87 GiB" in told
    verdicts = [
        line.split()[0] for line in told.splitlines() if line.startswith(("holds", "wrong"))
    ]
    assert verdicts == sorted(verdicts)


@pytest.mark.parametrize(
    ("about", "cause", "first"),
    [
        ("checkpointing", "its input alone, .* runs the layer's forward again", "wrong Check"),
        (
            "16 bytes",
            "4 of parameters [+] 4 of gradients [+] 8 of optimizer state in",
            "holds ZeRO",
        ),
    ],
)
def test_why_stands_before_the_verdict_on_the_rule_that_was_asked_about(
    brimful, about, cause, first
):
    told = " ".join(brimful(*RULE, "--about", about).out.split())
    because, _, rules = told.partition(first)
    assert re.search(f"because .*{cause}", because)
    assert rules
    assert "70e9" not in rules
    assert "Llama 2" not in rules
