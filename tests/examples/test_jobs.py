"""The examples' job files at their smallest: each trains, and what it leaves can be loaded."""

import email
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import processes
from brimful.cli.main import main

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SMALLEST = ("--steps", "4", "--global-batch", "4", "--micro-batch", "2", "--ac", "none")
CHATS = ("full", "lora", "qlora")
COMPARED = ("decoder", "classifier")
JOBS = (
    *("pretrain/job", *(f"chat/{name}" for name in CHATS)),
    *("classify/job", "switch/job", "prefer/job"),
)


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A clean folder with nothing in it but the examples, and their data made as the page says."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for kind, path in (
        ("chat", "chat.jsonl"),
        ("classify", "classify.csv"),
        ("names", "names.jsonl"),
        ("prefer", "prefer.jsonl"),
    ):
        script = str(folder / "examples" / "make_data.py")
        command = [sys.executable, script, kind, f"data/{path}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def brimful(here, capsys, monkeypatch):
    """Run a command line where the examples are."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("BRIMFUL_CACHE", str(here / "cache"))

    def run(*argv):
        capsys.readouterr()
        return Said(main(list(argv)), *capsys.readouterr())

    return run


@pytest.fixture
def pretrained(brimful, here):
    """Return the folder of the model that all conversations start from."""
    folder = here / "runs" / "pretrain"
    if not folder.exists():
        # The text of this project is a tenth of the standard library's.
        text = ("--data", str(ROOT / "src" / "brimful" / "models"), "--loss-chunks", "1")
        said = brimful("train", "examples/pretrain/job.yaml", *SMALLEST, *text)
        assert said.code == 0, said.err
    return folder / "model"


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_run(said, folder, *, num_steps=4):
    """A whole run: its files, its curve, and what was said."""
    assert said.code == 0, said.err
    names = {path.name for path in folder.iterdir()}
    assert names >= {"plan.yaml", "metrics.jsonl", "measurement.json", "checkpoints", "model"}
    curve = [row for row in rows(folder) if row["kind"] == "train"]
    assert [row["step"] for row in curve] == list(range(1, num_steps + 1))
    assert f"model in {Path('runs') / folder.name / 'model'}" in said.out
    assert f"next: brimful report {Path('runs') / folder.name}" in said.out


def test_every_job_file_has_a_line_on_the_page():
    page = (ROOT / "examples" / "README.md").read_text()
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*/*.yaml")}
    compared = {f"examples/recipes/{name}.yaml" for name in COMPARED}
    assert found == {f"examples/{name}.yaml" for name in (*JOBS, "cnn/job")} | compared
    assert all(f"brimful train {name}" in page for name in found - compared)
    assert all(f"brimful precision {name} --compare" in page for name in compared)


@pytest.mark.long
def test_a_model_is_pretrained(pretrained, here):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(pretrained)
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    with torch.no_grad():
        logits = model(**tokenizer("import json", return_tensors="pt")).logits
    assert logits.isfinite().all()
    assert {row["kind"] for row in rows(here / "runs" / "pretrain")} == {"train", "eval"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_model_is_made_of_it(brimful, here, pretrained, name):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    preview = brimful("train", f"examples/chat/{name}.yaml", "--preview")
    masked = [line for line in preview.out.splitlines() if line.startswith("      | ")]
    learnt = [line for line in preview.out.splitlines() if line.startswith(" loss | ")]
    assert any("What does" in line for line in masked)
    assert learnt
    assert not any("What does" in line for line in learnt)

    said = brimful("train", f"examples/chat/{name}.yaml", *SMALLEST, "--loss-chunks", "1")
    folder = here / "runs" / f"chat-{name}"
    check_run(said, folder)
    if name == "full":
        assert "training all" in said.out
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
    else:
        assert "for peft.PeftModel.from_pretrained" in said.out
        base = AutoModelForCausalLM.from_pretrained(pretrained)
        model = PeftModel.from_pretrained(base, folder / "model")
        assert any(p.abs().sum() for n, p in model.named_parameters() if "lora_B" in n)
    assert AutoTokenizer.from_pretrained(folder / "model").chat_template
    assert sum(p.numel() for p in model.parameters()) > 0


@pytest.mark.long
@pytest.mark.usefixtures("pretrained")
def test_a_model_learns_to_prefer(brimful, here):
    preview = brimful("train", "examples/prefer/job.yaml", "--preview")
    assert preview.code == 0, preview.err
    scored = [line for line in preview.out.splitlines() if line.startswith(" loss | ")]
    assert len(scored) >= 2
    assert not any("What does" in line for line in scored)
    said = brimful("train", "examples/prefer/job.yaml", *SMALLEST, "--loss-chunks", "1")
    check_run(said, here / "runs" / "prefer")
    assert "nats per pair" in said.out
    assert "for peft.PeftModel.from_pretrained" in said.out


@pytest.mark.long
def test_a_classifier_is_trained(brimful, here):
    from transformers import AutoModelForSequenceClassification

    preview = brimful("train", "examples/classify/job.yaml", "--preview")
    assert "\n loss | class " in preview.out
    said = brimful("train", "examples/classify/job.yaml", *SMALLEST)
    check_run(said, here / "runs" / "classify")
    assert "accuracy" in said.out
    assert "token" not in said.out.partition("running the first step")[2]
    model = AutoModelForSequenceClassification.from_pretrained(here / "runs" / "classify" / "model")
    assert model.num_labels == 7


@pytest.mark.long
def test_a_switch_transformer_is_trained(brimful, here):
    from transformers import AutoModelForSeq2SeqLM

    preview = brimful("train", "examples/switch/job.yaml", "--preview")
    assert "\ntarget\n loss | " in preview.out
    said = brimful("train", "examples/switch/job.yaml", *SMALLEST)
    check_run(said, here / "runs" / "switch")
    model = AutoModelForSeq2SeqLM.from_pretrained(here / "runs" / "switch" / "model")
    assert model.config.num_experts == 4


@pytest.mark.long
def test_a_convolutional_network_is_trained(here):
    # In a process of its own: in this one, "examples" is the folder of these tests.
    done = processes.run(["-m", "brimful", "train", "examples/cnn/job.yaml", *SMALLEST], cwd=here)
    said = Said(done.returncode, done.stdout, done.stderr)
    check_run(said, here / "runs" / "cnn")
    assert "samples/s" in said.out
    assert "token" not in said.out


def test_recipes_are_compared_on_a_decoder(brimful):
    # The classifier's are in tests/validation/test_recipes_part.py.
    # A package of the standard library is a tenth of its text.
    text = ("--data", str(Path(email.__file__).parent))
    command = ("precision", "examples/recipes/decoder.yaml", "--gpus", "local", "--steps", "6")
    said = brimful(*command, *text, "--warmup-steps", "0", "--compare", "fp32,fp16", "--seeds", "1")
    assert said.code == 0, said.err
    fp32, fp16 = (line for line in said.out.splitlines() if line.startswith("fp"))
    assert "+0.00%" in fp32
    assert "failed" in fp16 or float(fp16.split()[2].rstrip("%")) > 100
    assert "The doctor: epsilon: in 20 of 20 parameters" in " ".join(said.out.split())
