import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.errors import FileFormatError, InputError
from brimful.values.plan import PLAN_SCHEMA, Plan, read_plan, write_yaml
from samples import make_cluster, make_job, make_strategy


@pytest.fixture
def plan():
    job, cluster, strategy = make_job(), make_cluster("cuda"), make_strategy()
    predicted = estimate(job, cluster, strategy)
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=predicted)


@pytest.fixture
def path(plan, tmp_path):
    write_yaml(plan, tmp_path / "plan.yaml")
    return tmp_path / "plan.yaml"


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_a_plan_survives_yaml_in_full(plan, path):
    assert read_plan(path) == plan


def test_a_plan_spells_every_field(plan, path):
    text = path.read_text("utf-8")
    for value in (plan.job, plan.cluster.device, plan.strategy, plan.estimate):
        for name in msgspec.structs.fields(type(value)):
            assert f"{name.encode_name}:" in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("micro_batch: 2", "micro_batchs: 2", "micro_batch"),
        ("  seq_len: 24", "  seq_len: 24\n  sequence: 24", "sequence"),
        ("micro_batch: 2", "micro_batch: two", "micro_batch"),
        ("clip: 1.0", "clip: strong", "clip"),
        ("precision: fp32", "precision: fp4", "fp4|precision"),
        (PLAN_SCHEMA, "brimful.plan/99", r"brimful\.plan/99.*brimful\.plan/2"),
    ],
)
def test_an_edit_that_is_no_plan_is_refused_with_the_field(path, old, new, words):
    edit(path, old, new)
    with pytest.raises(FileFormatError, match=words):
        read_plan(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("micro_batch: 2", "micro_batch: 3", "does not divide"),
        ("seq_len: 24", "seq_len: 4096", "4096"),
        ("activation_checkpointing: none", "activation_checkpointing: full:9", "full:3"),
    ],
)
def test_an_edit_that_cannot_run_is_refused_like_a_flag(path, old, new, words):
    edit(path, old, new)
    with pytest.raises(InputError, match=words):
        read_plan(path)


def test_what_is_not_yaml_is_said_with_its_line(path):
    path.write_text("schema: x\njob: [1, 2\nmore: {", "utf-8")
    with pytest.raises(FileFormatError, match=r"not YAML \(line \d"):
        read_plan(path)


def test_a_missing_or_binary_file_is_said(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_plan(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        read_plan(tmp_path / "binary.yaml")
