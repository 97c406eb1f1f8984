import json

import pytest

from brimful.errors import FileFormatError
from brimful.report.run_folder import read_run_folder, record_command


def test_every_part_is_read(full_run, plan):
    folder = read_run_folder(full_run)
    assert folder.plan == plan
    assert folder.simulation is not None
    assert folder.measurement is not None
    assert folder.verdict is not None
    assert folder.search is not None
    assert folder.data is not None
    assert [row.step for row in folder.train_rows] == list(range(1, 31))
    assert [row.step for row in folder.eval_rows] == [10, 20, 30]


def test_a_plan_alone_is_a_run_folder(bare_run):
    folder = read_run_folder(bare_run)
    assert (folder.simulation, folder.measurement, folder.search) == (None, None, None)
    assert folder.train_rows == folder.commands == ()


def test_a_missing_folder_is_refused_by_name(tmp_path):
    with pytest.raises(FileFormatError, match=r"no run folder at .*nowhere"):
        read_run_folder(tmp_path / "nowhere")


def test_a_folder_without_plan_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"holds no plan\.yaml"):
        read_run_folder(tmp_path)


@pytest.mark.parametrize("name", ["simulation", "measurement", "verdict", "search", "data"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema": 3}', b"\xff\xfe"])
def test_a_broken_part_is_refused_with_its_name_and_the_fix(full_run, name, content):
    (full_run / f"{name}.json").write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"{name}\.json.*(delete it or run brimful)"):
        read_run_folder(full_run)


@pytest.mark.parametrize("name", ["simulation", "measurement", "verdict", "search", "data"])
def test_another_schema_is_refused_with_both(full_run, name):
    path = full_run / f"{name}.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "schema": f"brimful.{name}/99"}))
    with pytest.raises(FileFormatError, match=rf"brimful\.{name}/99.*brimful\.{name}/\d"):
        read_run_folder(full_run)


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"kind": "train", "step": "x"}', "{}"])
def test_a_broken_metrics_line_is_refused_by_number(full_run, line):
    path = full_run / "metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(FileFormatError, match=r"metrics\.jsonl line 34.*delete it"):
        read_run_folder(full_run)


def test_half_a_last_line_is_a_run_still_going(full_run):
    path = full_run / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "train", "st')
    assert len(read_run_folder(full_run).train_rows) == 30


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "null"])
def test_a_loss_that_is_no_number_is_refused(full_run, loss):
    path = full_run / "metrics.jsonl"
    row = '{"kind":"train","step":31,"loss":LOSS,"learning_rate":0.1,"grad_norm":1.0,'
    row += '"tokens_per_s":1.0,"step_s":1.0}\n'
    path.write_text(path.read_text() + row.replace("LOSS", loss))
    with pytest.raises(FileFormatError, match="line 34"):
        read_run_folder(full_run)


def test_of_a_step_run_twice_the_last_counts(full_run):
    path = full_run / "metrics.jsonl"
    again = '{"kind": "eval", "step": 20, "heldout_loss": 0.25}\n'
    path.write_text(path.read_text() + again)
    rows = read_run_folder(full_run).eval_rows
    assert [(row.step, row.heldout_loss) for row in rows][1] == (20, 0.25)
    assert len(rows) == 3


def test_commands_are_kept_in_order_and_quoted(bare_run):
    record_command(bare_run, ["brimful", "train", "my plan.yaml"])
    record_command(bare_run, ["brimful", "report", "a\nb"])
    commands = read_run_folder(bare_run).commands
    assert commands == ("brimful train 'my plan.yaml'", "brimful report $'a\\x0ab'")
