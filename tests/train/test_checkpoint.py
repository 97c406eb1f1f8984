import os
import pickle
import resource
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from brimful.errors import FileFormatError, RunError

pytestmark = pytest.mark.torch

# Torch is imported where a test runs, so that collecting the tests stays fast.


def build(plan):
    import torch

    from brimful.build.assemble import build_program

    return build_program(plan.job, plan.strategy, torch.device("cpu"))


def step(program, seed):
    import torch

    from brimful.build.batch import Batch, count_targets
    from brimful.build.step import train_step

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 300, (2, 33), generator=generator)
    batches = [Batch(tokens[:, :-1], tokens[:, 1:])]
    num_targets = count_targets(batches)
    return float(train_step(program, batches, num_targets=num_targets, learning_rate=0.01).loss)


def progress(plan, number, *, heldout_loss=None):
    from brimful.train.checkpoint import Progress
    from brimful.train.data.batches import DataPosition

    position = DataPosition(epoch=1, index=number)
    return Progress(
        plan=plan, step=number, position=position, tokens_hash="abc", heldout_loss=heldout_loss
    )


@pytest.fixture
def trained(plan_with):
    plan = plan_with()
    program = build(plan)
    step(program, 1)
    return plan, program


@pytest.fixture
def saved(trained, tmp_path):
    from brimful.train.checkpoint import save_checkpoint

    plan, program = trained
    return plan, program, save_checkpoint(tmp_path / "checkpoints", program, progress(plan, 20))


def test_everything_comes_back_and_training_goes_on_bit_for_bit(saved):
    import torch

    from brimful.train.checkpoint import load_checkpoint

    plan, program, path = saved
    expected_noise = torch.rand(3)
    expected = [step(program, seed) for seed in (2, 3, 4)]
    fresh = build(plan)
    checkpoint = load_checkpoint(path, fresh)
    assert torch.equal(torch.rand(3), expected_noise)
    assert [step(fresh, seed) for seed in (2, 3, 4)] == expected
    assert path.name == "step-00000020"
    assert (checkpoint.step, checkpoint.plan) == (20, plan)
    assert (checkpoint.position.epoch, checkpoint.position.index) == (1, 20)
    assert checkpoint.tokens_hash == "abc"
    for before, after in zip(program.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(before, after)


def test_a_tied_weight_is_saved_once_and_stays_tied(saved):
    from brimful.train.checkpoint import load_checkpoint
    from brimful.train.tensor_files import read_shapes

    plan, program, path = saved
    num_parameters = len(list(program.model.parameters()))
    names = read_shapes(path)
    assert sum(name.startswith("model.") for name in names) == num_parameters
    assert sum(name.startswith("optimizer.") for name in names) == 3 * num_parameters
    fresh = build(plan)
    load_checkpoint(path, fresh)
    embeddings = fresh.model.get_input_embeddings().weight
    assert fresh.model.get_output_embeddings().weight is embeddings


def test_an_incomplete_one_is_passed_over_for_an_older_one(trained, tmp_path):
    from brimful.train.checkpoint import newest_checkpoint, save_checkpoint

    plan, program = trained
    old = save_checkpoint(tmp_path, program, progress(plan, 5))
    new = save_checkpoint(tmp_path, program, progress(plan, 10))
    (new / "__0_0.distcp").unlink()
    assert newest_checkpoint(tmp_path) == old
    shutil.rmtree(old)
    with pytest.raises(FileFormatError, match=r"__0_0\.distcp has 0 of \d+ bytes"):
        newest_checkpoint(tmp_path)


def test_no_checkpoints_are_no_checkpoint(tmp_path):
    from brimful.train.checkpoint import newest_checkpoint

    assert newest_checkpoint(tmp_path / "nowhere") is None
    assert newest_checkpoint(tmp_path) is None


def test_a_saved_step_is_not_saved_again(saved):
    from brimful.train.checkpoint import save_checkpoint

    plan, program, path = saved
    before = path.stat().st_ino
    assert save_checkpoint(path.parent, program, progress(plan, 20)) == path
    assert path.stat().st_ino == before


def test_a_damaged_one_is_saved_again(saved):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan, program, path = saved
    os.truncate(path / "__0_0.distcp", 100)
    save_checkpoint(path.parent, program, progress(plan, 20))
    assert load_checkpoint(path, build(plan)).step == 20
    flip_a_bit(path / "__0_0.distcp")
    save_checkpoint(path.parent, program, progress(plan, 20))
    assert load_checkpoint(path, build(plan)).step == 20


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def edit_manifest(folder, change):
    """Change a manifest as a hand, or a disk, might."""
    manifest = msgspec.json.decode((folder / "checkpoint.json").read_bytes())
    change(manifest)
    (folder / "checkpoint.json").write_bytes(msgspec.json.encode(manifest))


def forge(path, name, content):
    """Put other bytes into a checkpoint and make its manifest agree, as an attacker would."""

    def agree(manifest):
        for file in manifest["files"]:
            if file["name"] == name:
                file |= {"num_bytes": len(content), "crc32": zlib.crc32(content)}

    (path / name).write_bytes(content)
    edit_manifest(path, agree)
    (path / "checkpoint.crc32").unlink(missing_ok=True)


def set_state(**fields):
    return lambda folder: edit_manifest(folder, lambda manifest: manifest["state"].update(fields))


def set_field(**fields):
    return lambda folder: edit_manifest(folder, lambda manifest: manifest.update(fields))


def drop_field(name):
    return lambda folder: edit_manifest(folder, lambda manifest: manifest.pop(name))


def lead_elsewhere(folder):
    """Let the metadata name a file outside the folder."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - our own
    for place in metadata.storage_data.values():
        place.relative_path = "../../passwords"
    forge(folder, ".metadata", pickle.dumps(metadata))


DAMAGES = {
    "no manifest": (lambda f: (f / "checkpoint.json").unlink(), "is not a checkpoint"),
    "empty manifest": (lambda f: (f / "checkpoint.json").write_bytes(b""), "is not a checkpoint"),
    "manifest without fields": (
        lambda f: (f / "checkpoint.json").write_bytes(b"{}"),
        "is not a checkpoint .*`schema`",
    ),
    "manifest of noise": (
        lambda f: (f / "checkpoint.json").write_bytes(b"\xff\x00"),
        "is not a checkpoint",
    ),
    "half a manifest": (
        lambda f: os.truncate(f / "checkpoint.json", 300),
        "is not a checkpoint",
    ),
    "manifest with a field missing": (drop_field("position"), "is not a checkpoint .*`position`"),
    "manifest of the past": (
        set_field(schema="brimful.checkpoint/1"),
        r"schema 'brimful\.checkpoint/1' and this version reads 'brimful\.checkpoint/2'",
    ),
    "manifest of the future": (
        set_field(schema="brimful.checkpoint/99", planets=9),
        r"schema 'brimful\.checkpoint/99' and this version reads",
    ),
    "no tensors": (
        lambda f: (f / "__0_0.distcp").unlink(),
        r"__0_0\.distcp has 0 of \d+ bytes",
    ),
    "no tensors and no word of them": (
        lambda f: (set_field(files=[])(f), (f / "__0_0.distcp").unlink()),
        r"saved by torch .* cannot be read by torch",
    ),
    "half the tensors": (
        lambda f: os.truncate(f / "__0_0.distcp", 1000),
        r"has 1000 of \d+ bytes; delete",
    ),
    "no metadata": (lambda f: (f / ".metadata").unlink(), r"\.metadata has 0 of \d+ bytes"),
    "a bit of the tensors": (
        lambda f: flip_a_bit(f / "__0_0.distcp"),
        r"checksum \w{8} and was saved with \w{8}",
    ),
    "a bit of the metadata": (
        lambda f: flip_a_bit(f / ".metadata"),
        r"checksum \w{8} and was saved with \w{8}",
    ),
    "zeros for tensors": (
        lambda f: forge(f, "__0_0.distcp", bytes((f / "__0_0.distcp").stat().st_size)),
        r"saved by torch .* cannot be read by torch",
    ),
    "noise for metadata": (lambda f: forge(f, ".metadata", b"noise"), "is not a checkpoint"),
    "another pickle for metadata": (
        lambda f: forge(f, ".metadata", pickle.dumps({"a": 1})),
        "is not a checkpoint; name another",
    ),
    "tensors that are elsewhere": (lead_elsewhere, "keeps tensors in .*passwords, outside it"),
    "numbers of another model": (
        set_state(optimizer={"model.layers.77.weight": {"step": 3}}),
        r"another model: model\.layers\.77\.weight",
    ),
    "numbers that are none": (
        set_state(optimizer={"model.norm.weight": {"scale": "0xzz"}}),
        "holds '0xzz', which is no number",
    ),
    "sharing with nothing": (
        set_state(shared={"optimizer.exp_avg.model.norm.weight": "optimizer.x.nowhere"}),
        r"another model: optimizer\.x\.nowhere",
    ),
    "a scaler from nowhere": (
        set_state(scaler={"scale": 8}),
        "checkpoint has a loss scaler and the plan has none",
    ),
    "another frozen base": (
        set_state(base_crc32=7),
        "frozen weights had checksum 00000007 and those of seed=7 now have none",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_refused_in_one_sentence_and_others_stay(saved, damage):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan, program, older = saved
    newer = save_checkpoint(older.parent, program, progress(plan, 40))
    act, said = DAMAGES[damage]
    act(newer)
    (newer / "checkpoint.crc32").unlink(missing_ok=True)  # as if all were meant
    with pytest.raises(FileFormatError, match=said) as refusal:
        load_checkpoint(newer, build(plan))
    assert "\n" not in str(refusal.value)
    assert load_checkpoint(older, build(plan)).step == 20


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "checkpoint.json"])
def test_a_flipped_bit_is_noticed_and_the_one_before_is_taken(saved, name):
    from brimful.train.checkpoint import (
        list_checkpoints,
        save_checkpoint,
        set_aside,
        sound_checkpoint,
    )

    plan, program, older = saved
    root = older.parent
    newer = save_checkpoint(root, program, progress(plan, 40))
    flip_a_bit(newer / name)
    content = (newer / name).read_bytes()
    found = sound_checkpoint(root)
    assert (found.path, found.checkpoint.step) == (older, 20)
    (damaged,) = found.damaged
    assert (damaged.step, damaged.path) == (40, newer)
    assert name in damaged.reason
    assert (set_aside(newer) / name).read_bytes() == content  # nothing is thrown away
    assert list_checkpoints(root) == [older]  # nor counted among the newest
    assert sound_checkpoint(root).damaged == ()


def test_where_none_is_sound_all_stay_and_one_sentence_says_so(saved):
    from brimful.train.checkpoint import list_checkpoints, save_checkpoint, sound_checkpoint

    plan, program, older = saved
    newer = save_checkpoint(older.parent, program, progress(plan, 40))
    for folder in (older, newer):
        flip_a_bit(folder / "__0_0.distcp")
    with pytest.raises(FileFormatError, match=r"all 2 checkpoints of .* cannot be used") as refusal:
        sound_checkpoint(older.parent)
    assert "\n" not in str(refusal.value)
    assert list_checkpoints(older.parent) == [older, newer]


def test_a_checkpoint_of_another_version_is_no_damaged_one(saved):
    from brimful.train.checkpoint import save_checkpoint, sound_checkpoint

    plan, program, older = saved
    newer = save_checkpoint(older.parent, program, progress(plan, 40))
    set_field(schema="brimful.checkpoint/99")(newer)
    (newer / "checkpoint.crc32").unlink()
    with pytest.raises(FileFormatError, match="use the version that wrote it"):
        sound_checkpoint(older.parent)
    assert newer.exists()


class Exploit:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (Path.touch, (Path(self.target),))


def test_a_forged_pickle_runs_nothing(saved, tmp_path):
    from brimful.train.checkpoint import load_checkpoint

    plan, _, path = saved
    content = pickle.dumps(Exploit(tmp_path / "exploited"))
    forge(path, ".metadata", content)
    with pytest.raises(FileFormatError, match="which no checkpoint needs"):
        load_checkpoint(path, build(plan))
    assert not (tmp_path / "exploited").exists()
    # The same bytes do harm where they are trusted: the test can fail.
    pickle.loads(content)  # noqa: S301
    assert (tmp_path / "exploited").exists()


def test_entries_that_would_be_unpickled_are_refused(tmp_path):
    import torch.distributed.checkpoint as dcp

    from brimful.train.tensor_files import _one_process, read_shapes

    with _one_process():
        dcp.save({"model.x": Exploit(tmp_path / "x")}, checkpoint_id=str(tmp_path / "other"))
    with pytest.raises(FileFormatError, match=r"BytesStorageMetadata|model\.x is no tensor"):
        read_shapes(tmp_path / "other")


def test_another_model_is_refused_by_name(saved, plan_with):
    from brimful.models.config import read_config
    from brimful.train.checkpoint import load_checkpoint

    plan, _, path = saved
    config = {**plan.job.model.hf_config, "model_type": "llama", "num_hidden_layers": 3}
    other = plan_with(model=read_config("three", config))
    with pytest.raises(FileFormatError, match=r"another model: model\.model\.layers\.2\."):
        load_checkpoint(path, build(other))


def test_moments_in_blocks_of_other_shards_are_refused(plan_with, tmp_path):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    pytest.importorskip("bitsandbytes")
    plan = plan_with(optimizer="adamw-8bit")
    program = build(plan)
    step(program, 1)
    shards = msgspec.structs.replace(plan.strategy, zero=3, dp_shard=2)
    elsewhere = msgspec.structs.replace(plan, strategy=shards)
    path = save_checkpoint(tmp_path / "checkpoints", program, progress(elsewhere, 1))
    with pytest.raises(FileFormatError, match=r"shard of dp_shard=2.*has shards of dp_shard=1"):
        load_checkpoint(path, build(plan))


def test_another_size_is_refused(saved, plan_with):
    from brimful.models.config import read_config
    from brimful.train.checkpoint import load_checkpoint

    plan, _, path = saved
    config = {**plan.job.model.hf_config, "model_type": "llama", "intermediate_size": 96}
    other = plan_with(model=read_config("wide", config))
    with pytest.raises(FileFormatError):
        load_checkpoint(path, build(other))


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=700k", "none", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small disk needs root: {error}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def check_first_step_is_whole(root, plan):
    from brimful.train.checkpoint import load_checkpoint, newest_checkpoint

    assert [path.name for path in root.iterdir()] == ["step-00000001"]
    assert load_checkpoint(newest_checkpoint(root), build(plan)).step == 1


def test_a_full_disk_leaves_earlier_checkpoints_alone(trained, small_disk):
    from brimful.train.checkpoint import save_checkpoint

    plan, program = trained
    root = small_disk / "run"
    save_checkpoint(root, program, progress(plan, 1))
    with pytest.raises(RunError, match=r"no space left on the disk of .*step-00000002; .*--out"):
        save_checkpoint(root, program, progress(plan, 2))
    check_first_step_is_whole(root, plan)


def test_a_file_size_limit_leaves_earlier_checkpoints_alone(trained, tmp_path, monkeypatch):
    from brimful.train.checkpoint import save_checkpoint

    plan, program = trained
    root = tmp_path / "run"
    save_checkpoint(root, program, progress(plan, 1))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut it, too
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(RunError, match=r"cannot be written \(File too large\)"):
            save_checkpoint(root, program, progress(plan, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_first_step_is_whole(root, plan)
