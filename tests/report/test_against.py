"""Two runs on one page."""

import json
import shutil

import msgspec
import pytest

from brimful.cli.main import main
from brimful.report.against import differences, figures_of, render_against
from brimful.report.run_folder import read_run_folder
from brimful.values.plan import read_plan, write_yaml

from .test_html import Page, charts


@pytest.fixture
def two(full_run, tmp_path):
    """A run, and one with another micro-batch and a loss that is half a nat lower."""
    other = tmp_path / "other"
    shutil.copytree(full_run, other)
    plan = read_plan(other / "plan.yaml")
    strategy = msgspec.structs.replace(plan.strategy, micro_batch=plan.strategy.micro_batch // 2)
    write_yaml(msgspec.structs.replace(plan, strategy=strategy), other / "plan.yaml")
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("loss") is not None:
            line["loss"] -= 0.5
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return full_run, other


def test_only_what_differs_is_listed(two):
    folder, other = map(read_run_folder, two)
    assert [row[0] for row in differences(folder, other)] == ["micro_batch"]
    assert differences(folder, folder) == []


def test_figures_are_those_of_the_runs(two):
    ours, theirs = (figures_of(read_run_folder(path)) for path in two)
    assert ours["measured peak"] == theirs["measured peak"]
    assert ours["last training loss"][0] - theirs["last training loss"][0] == pytest.approx(0.5)


def test_the_page_holds_both(two):
    source = render_against(*map(read_run_folder, two))
    page = Page(source)
    assert page.sections == ["figures", "differences", "timeline", "items", "loss"]
    loss = charts(source)["loss-chart"]["series"]
    names = [path.name for path in two]
    assert [line["label"] for line in loss[::2]] == [f"{name}, train" for name in names]
    assert "micro_batch" in page.text.replace(" ", "")


def test_a_run_without_measurement_is_held_against_one_with(two):
    (two[1] / "measurement.json").unlink()
    page = Page(render_against(*map(read_run_folder, two)))
    assert "per phase, simulated" in page.text


def test_the_command_writes_and_prints(two, capsys):
    assert main(["report", str(two[0]), "--against", str(two[1])]) == 0
    out = capsys.readouterr().out
    assert "micro_batch" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("report")) <= 100
    (path,) = two[0].glob("against-*.html")
    assert str(path) in out.replace("\n", "")
    assert main(["report", str(two[0]), "--against", str(two[1]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "brimful.against/1"
    assert told["inputs"][0]["name"] == "micro_batch"


def test_a_folder_that_is_no_run_is_one_sentence(full_run, tmp_path, capsys):
    assert main(["report", str(full_run), "--against", str(tmp_path / "nothing")]) == 2
    assert "no run folder" in capsys.readouterr().err
    assert main(["report", str(full_run), "--against", str(full_run)]) == 2
    assert "against itself" in capsys.readouterr().err
