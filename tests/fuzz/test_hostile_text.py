"""What a person gave as text never becomes code: of a shell, a YAML, a page or a terminal.

Every text is drawn, put into every field that holds text, and written by everything that writes;
``hostile`` holds the draws and the judges. Text is data, or is refused in one sentence.
"""

import ast
import dataclasses
import io
import json
import os
import shutil
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Group
from tests.report.sample import (
    make_measurement,
    make_plan,
    make_search,
    make_simulation,
    metric_lines,
)
from tests.report.test_comparison import make_comparison
from tests.report.test_pretend import report_of

from brimful.cli.main import main, parser_of
from brimful.errors import FileFormatError, InputError
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, read_config
from brimful.report.run_folder import read_run_folder, record_command
from brimful.text.terminal import console
from brimful.train.observers import describe_stop
from brimful.values.plan import PLAN_SCHEMA, Plan, read_plan, to_yaml
from samples import TINY_LLAMA, make_job, make_strategy

from .hostile import (
    MARK,
    Page,
    draws,
    is_plain,
    page_faults,
    poison,
    run_in_bash,
    screen_faults,
)

KEYS = (
    "schema", "model_type", "activation_checkpointing", "offload", "kernels", "hf_config",
    "link", "network",
)  # fmt: skip
"""Fields whose text is looked up in a table of ours, so that no other passes."""
MOST = 4096


@pytest.fixture(scope="module")
def plan():
    """A plan of two nodes that every target takes."""
    return Plan(
        schema=PLAN_SCHEMA,
        job=make_job(model=load_model("llama-3.2-1b"), seq_len=512, global_batch=32),
        cluster=load_cluster("2x8xh100-80gb", memory_limit_bytes=None),
        strategy=make_strategy(zero=3, dp_shard=16),
        estimate=make_plan().estimate,
    )


def poisoned(plan, text, *, keep=()):
    return poison(plan, text, keep=(*KEYS, *keep))


def exported(plan, target, text):
    """Export a plan that holds a text wherever it may; torchtitan has models by name only."""
    keep = ("model",) if target == "torchtitan" else ()
    given = Given(plan=f"{text}.yaml", data=text, out=text)
    return TARGETS[target](poisoned(plan, text, keep=keep), given).text


def is_argument(text):
    """Whether a flag takes a text: no blank, no end of flags, nothing that no program is given."""
    is_whole = not any("\ud800" <= c < "\udc80" or "\udcff" < c < "\ue000" for c in text)
    return bool(text.strip()) and text != "--" and "\0" not in text and is_whole


def is_file_name(text):
    """Whether a file system takes a name of this length; ``--out`` is refused where it does not."""
    return len(os.fsencode(text)) < 250


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
def test_a_script_runs_one_command_with_the_words_that_were_given(plan, target, tmp_path):
    texts = [text for text in draws(120, seed=1) if is_argument(text) and is_file_name(text)]
    scripts = [exported(plan, target, text) for text in texts]
    train = parser_of("train")
    for text, script, words in zip(texts, scripts, run_in_bash(scripts, tmp_path), strict=True):
        argv = [os.fsdecode(word) for word in words]
        given = train.parse_args(argv[argv.index("train") + 1 :])
        assert given.model in {f"{text}.yaml", f"./{text}.yaml"}
        assert (given.data, str(given.out)) == (text, str(Path(text)))
        assert options(script) == options(exported(plan, target, MARK))


def options(script):
    """List what a batch system reads of a script, as far as it must be alike in all."""
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert all(is_plain(line) and " " not in line.removeprefix("#SBATCH ") for line in lines)
    return [line.partition("=")[0] if "job-name" in line else line for line in lines]


def test_a_null_character_is_refused_in_a_script(plan):
    for target in ("slurm", "torchrun"):
        with pytest.raises(InputError, match="null character"):
            exported(plan, target, "a\0b")


def test_command_lines_that_are_kept_are_the_ones_that_were_typed(tmp_path):
    texts = [text for text in draws(120, seed=2) if is_argument(text)]
    for text in texts:
        record_command(tmp_path, ["brimful", "train", text, f"--data={text}"])
    lines = (tmp_path / "commands.txt").read_text().splitlines()
    assert len(lines) == len(texts)
    for text, words in zip(texts, run_in_bash(lines, tmp_path), strict=True):
        assert [os.fsdecode(word) for word in words[2:]] == [text, f"--data={text}"]


@pytest.mark.parametrize("target", ["accelerate", "hf-trainer"])
def test_a_yaml_says_what_it_says_with_a_harmless_name(plan, target):
    expected = yaml.safe_load(exported(plan, target, MARK))
    for text in draws(100, seed=3):
        found = yaml.safe_load(exported(plan, target, text))
        if "output_dir" in expected:
            assert found.pop("output_dir") == text
        assert found == {key: expected[key] for key in expected if key != "output_dir"}


def test_json_and_python_say_what_they_say_with_a_harmless_name(plan):
    config = json.loads(exported(plan, "deepspeed", MARK))
    module = ast.dump(ast.parse(exported(plan, "torchtitan", MARK)))
    for text in draws(100, seed=4):
        assert json.loads(exported(plan, "deepspeed", text)) == config
        assert ast.dump(ast.parse(exported(plan, "torchtitan", text))) == module


def test_a_plan_comes_back_as_it_was_or_is_refused(tmp_path):
    """Of a text that is not one line, the first field that has it is named."""
    made = make_plan()
    for text in draws(100, seed=5):
        hostile = poisoned(made, text)
        (tmp_path / "plan.yaml").write_text(to_yaml(hostile))
        if is_plain(text) and len(text) <= MOST:
            assert read_plan(tmp_path / "plan.yaml") == hostile
        else:
            with pytest.raises(FileFormatError, match=r"line break or a control|longer than"):
                read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize("verb", ["estimate", "export", "report", "plan"])
def test_names_in_files_are_refused_or_shown_by_every_verb(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    run.mkdir()
    argv = {
        "estimate": ["estimate", "run/plan.yaml"],
        "export": ["export", "run/plan.yaml", "--to", "deepspeed"],
        "report": ["report", "run"],
        "plan": ["plan", "job.yaml"],
    }[verb]
    made = make_plan()
    for text in draws(12, seed=6):
        (run / "plan.yaml").write_text(to_yaml(poisoned(made, text)))
        job = {"model": text, "gpus": text, "prices": text, "data": text}
        Path("job.yaml").write_text(yaml.safe_dump(job))
        capsys.readouterr()
        code = main(argv)
        said = capsys.readouterr()
        assert is_plain((said.out + said.err).replace("\n", "")), ascii(text)
        assert code in {0, 1, 2}
        if not is_plain(text) or verb == "plan":
            assert (code, said.out, said.err.count("\n")) == (2, "", 1), ascii(text)


def test_no_argument_steers_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__), "plain.yaml")
    for text in draws(100, seed=7):
        for argv in (
            ["export", "plain.yaml", "--to", text],
            ["estimate", text, "--gpus", "h100-80gb"],
            ["estimate", "gpt2", f"--gpus={text}"],
            ["report", text],
            ["validate", f"--file={text}"],
            [text],
        ):
            assert main(argv) in {0, 2}
            said = capsys.readouterr()
            assert is_plain((said.out + said.err).replace("\n", "")), ascii(text)


def test_a_models_name_is_one_line():
    for text in draws(200, seed=8):
        if is_plain(text):
            assert read_config(text, TINY_LLAMA).name == text
        else:
            with pytest.raises(InputError, match="the model's name holds"):
                read_config(text, TINY_LLAMA)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Everything of a run, read once."""
    folder = tmp_path_factory.mktemp("run")
    plan = make_plan()
    (folder / "plan.yaml").write_text(to_yaml(plan))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in metric_lines(10))
    )
    for name, value in (
        ("simulation", make_simulation(plan)),
        ("measurement", make_measurement(plan)),
        ("search", make_search(plan)),
    ):
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(value))
    record_command(folder, ["brimful", "train"])
    return read_run_folder(folder)


@pytest.fixture(scope="module")
def watched(run):
    from brimful.report.watched_run import WATCHED_SCHEMA, WatchedRun

    return WatchedRun(
        schema=WATCHED_SCHEMA, title="x", machine="x", usable_bytes=2**31, num_parameters=1,
        num_trained=1, settings=(("x", "x"),), estimate=run.plan.estimate, not_predicted="",
        simulation=run.simulation, not_simulated="", measurement=run.measurement, rows=(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def shopped():
    from brimful.cli.shop import shop

    return shop(
        parser_of("shop").parse_args(
            [
                "gpt2",
                "--tokens",
                "1B",
                "--kinds",
                "h100-80gb,l40s",
                "--max-gpus",
                "8",
                "--own",
                "rtx-4090",
            ]
        )
    )


@pytest.fixture(scope="module")
def pages(run, watched, shopped):
    """What writes pages, each of a text."""
    from brimful.report.against import render_against
    from brimful.report.answer import answer_page
    from brimful.report.html import render_report
    from brimful.report.pretend import pretend_tables
    from brimful.report.shop_page import shop_page
    from brimful.report.watched import render_watched
    from brimful.show.answer import Answer
    from brimful.show.pretend import pretend_summary

    def answered(report, text):
        told = (pretend_tables(report),)
        answer = Answer(pretend_summary(report, [text]), (), told, report.timeline)
        return answer_page(answer, command=text)

    pretended = report_of()
    other = dataclasses.replace(run, run_dir=Path("other"))
    return {
        "run": lambda text: render_report(run_with(run, text)),
        "against": lambda text: render_against(other, run_with(run, text)),
        "pretend": lambda text: answered(poison(pretended, text, keep=(*KEYS, "line")), text),
        "watched": lambda text: render_watched(poison(watched, text, keep=(*KEYS, *ITEMS))),
        "shop": lambda text: shop_page(shop_with(shopped, text)),
    }


ITEMS = ("items",)
"""Classes of memory are a list of ours; every why beside them is drawn with owners and notes."""


def run_with(run, text):
    return poison(run, text, keep=(*KEYS, *ITEMS, "run_dir", "rung"))


def shop_with(shopped, text):
    return poison(shopped, text, keep=(*KEYS, "kind", "device", "cluster", "name"))


@pytest.mark.parametrize("page", ["run", "against", "pretend", "watched", "shop"])
def test_a_page_has_the_tags_of_a_harmless_name_and_its_text(pages, page):
    render = pages[page]
    harmless = cache(lambda length: Page(render(MARK * length)))
    for text in draws(10 if page in {"run", "against"} else 25, seed=9):
        assert page_faults(render(text), harmless(len(text)), text) == [], ascii(text)


def test_a_picture_is_the_one_of_a_harmless_name():
    from brimful.report.comparison_plot import comparison_svg

    made = make_comparison()
    for text in draws(100, seed=10):
        found = ET.fromstring(comparison_svg(poison(made, text, keep=KEYS)))  # noqa: S314 - ours
        expected = ET.fromstring(comparison_svg(poison(made, MARK * len(text), keep=KEYS)))  # noqa: S314
        pairs = list(zip(found.iter(), expected.iter(), strict=True))
        assert all((a.tag, a.attrib) == (b.tag, b.attrib) for a, b in pairs)
        if is_plain(text):
            told = [(b.text or "").replace(MARK * len(text), text) for _, b in pairs]
            assert [a.text or "" for a, _ in pairs] == told


def test_a_folders_name_is_text_on_the_page_and_in_its_commands(run, tmp_path):
    from brimful.report.html import render_report

    texts = [text for text in draws(25, seed=11) if is_argument(text) and "/" not in text]
    for text in texts:
        named = dataclasses.replace(run, run_dir=Path("runs") / text)
        harmless = dataclasses.replace(named, run_dir=Path("runs") / (MARK * len(text)))
        page = Page(render_report(harmless))
        assert page_faults(render_report(named), page, text) == [], ascii(text)
    commands = [describe_stop(3, Path(text)).partition("go on with: ")[2] for text in texts]
    for text, words in zip(texts, run_in_bash(commands, tmp_path), strict=True):
        assert os.fsdecode(words[2]) == str(Path(text) / "plan.yaml")


@pytest.fixture(scope="module")
def tables(run, watched, shopped, plan):
    """What lays out tables, each of a text."""
    from brimful.cost.inference import estimate_inference
    from brimful.measure.verdict import judge
    from brimful.report import text as tables
    from brimful.report.comparison import comparison_tables
    from brimful.report.inference import inference_tables
    from brimful.report.precision import precision_tables
    from brimful.report.pretend import pretend_tables
    from brimful.report.shop import shop_tables
    from brimful.report.tables import filled_table, pairs_table
    from brimful.report.watched import watched_lines

    pretended, compared, seen = report_of(), make_comparison(), examined(run)
    verdict = judge(run.plan, run.simulation, run.measurement)
    job, cluster = inferred()
    answered = estimate_inference(job, cluster)

    def infer(text):
        changed = (poison(value, text, keep=(*KEYS, *ITEMS)) for value in (job, cluster, answered))
        return inference_tables(*changed, formats=(), limits=None)

    return {
        "plan": lambda text: tables.plan_tables(
            poisoned(run.plan, text), run_with(run, text).search
        ),
        "verdict": lambda text: tables.verdict_table(poison(verdict, text, keep=KEYS)),
        "owners": lambda text: tables.owners_table(poison(run.simulation, text, keep=KEYS)),
        "machine": lambda text: tables.device_table(poisoned(plan.cluster.device, text)),
        "comparison": lambda text: comparison_tables(poison(compared, text, keep=KEYS)),
        "precision": lambda text: precision_tables(poison(seen, text, keep=KEYS)),
        "pretend": lambda text: pretend_tables(poison(pretended, text, keep=KEYS)),
        "shop": lambda text: Group(*shop_tables(shop_with(shopped, text))),
        "watched": lambda text: watched_lines(poison(watched, text, keep=(*KEYS, *ITEMS))),
        "infer": infer,
        "headings": lambda text: filled_table(text, (text, text), [(text, text)]),
        "pairs": lambda text: pairs_table([(text, text)], title=text),
    }


def inferred():
    from brimful.cli.inference import asked

    return asked(
        parser_of("estimate").parse_args(["gpt2", "--gpus", "h100-80gb", "--task", "inference"])
    )


def examined(run):
    from brimful.doctor.advice import Advice
    from brimful.doctor.examination import Examination, ExamineSettings
    from brimful.doctor.findings import Finding
    from brimful.doctor.records import Moments, Watched
    from brimful.doctor.seen import Seen

    watched = Watched(
        rank=0, steps=(1,), rows=(), bads=(), lost=(), scales=(),
        moments=(Moments(step=1, name="x", held="x", num=1, num_vanished=1, epsilon=1e-8),),
    )  # fmt: skip
    finding = Finding(fault="epsilon", name="x", kind="update", step=1, ranks=(0,), text="x")
    return Examination(
        schema="x", job=run.plan.job, strategy=run.plan.strategy, settings=ExamineSettings(),
        losses=(1.0,), grad_norms=(1.0,), seen=Seen(ranks=(watched,)), findings=(finding,),
        advice=(Advice(topic="epsilon", text="x", names=("x",)),),
    )  # fmt: skip


NAMES_OF_TABLES = (
    "plan", "verdict", "owners", "machine", "comparison", "precision", "pretend", "shop", "watched",
    "infer", "headings", "pairs",
)  # fmt: skip


UNFOLDED = frozenset({"machine", "headings", "pairs"})
"""Tables whose columns are as wide as what is in them, so that every text in them is whole."""


def printed(renderable):
    """Print on a colour terminal so wide that nothing is folded."""
    screen = console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=6_000)
    screen.print(renderable)
    return screen.file.getvalue()


@pytest.mark.parametrize("table", NAMES_OF_TABLES)
def test_a_table_shows_text_and_obeys_none(tables, table):
    lay_out = tables[table]
    harmless = printed(lay_out(MARK))
    assert MARK in harmless
    for text in draws(15, seed=12):
        screen = printed(lay_out(text))
        assert screen_faults(screen, harmless) == [], ascii(text)
        if is_plain(text):
            told = " ".join(screen.split()).count(" ".join(text.split()))
            assert told >= (harmless.count(MARK) if table in UNFOLDED else 1), ascii(text)


def test_sentences_of_a_run_show_text_and_obey_none(capsys):
    from brimful.cli.progress import Progress
    from brimful.train.live import RichObserver
    from brimful.train.observers import PlainObserver

    paper = io.StringIO()
    wide = {"force_terminal": True, "color_system": "truecolor", "width": 6_000}
    live = RichObserver(console(file=paper, **wide))
    plain = PlainObserver()
    for text in draws(100, seed=13):
        for observer in (live, plain):
            observer.on_message(text)
            observer.on_checkpoint(1, Path(text))
        with Progress(text, quiet=False) as progress:
            progress.note(text)
        said = "".join([paper.getvalue(), *capsys.readouterr()])
        assert is_plain(said.replace("\n", "")), ascii(text)
        assert not is_plain(text) or said.count(text) >= len((live, plain)), ascii(text)
        paper.truncate(0)
        paper.seek(0)
    live.on_stage("[red]\x1b[35;5m")
    live.close()
    assert "[red]\\x1b[35;5m" in paper.getvalue()
    assert "\x1b[35;5m" not in paper.getvalue()
