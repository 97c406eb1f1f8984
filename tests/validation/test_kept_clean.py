"""Evidence names a commit that can be checked out; what does not is listed, a list that shrinks."""

import subprocess
import sys
from pathlib import Path

import kept_clean
import msgspec
import prove

FOLDER = Path(__file__).parents[2] / "validation"


def test_all_evidence_is_of_a_clean_commit_but_for_what_is_listed():
    found, known = kept_clean.unclean(), kept_clean.known()
    assert set(found) <= set(known), {name: found[name] for name in found.keys() - known.keys()}


def test_nothing_is_listed_without_need():
    known = kept_clean.known()
    if not kept_clean.has_history():
        # Whether a commit is lost cannot be told here: only what says so itself is looked at.
        assert all((FOLDER / f"{name}.json").is_file() for name in known)
        return
    assert set(known) <= set(kept_clean.unclean()), "made again since: take it off unclean.toml"
    assert all(known.values())


def written(folder, **changes):
    made = {"commit": "0" * 40, "is_dirty": False, **changes}
    (folder / "one.json").write_bytes(msgspec.json.encode({"provenance": made}))
    return kept_clean.unclean(folder)


def test_changes_and_lost_commits_are_told(tmp_path):
    assert "not committed" in written(tmp_path, is_dirty=True)["one"]
    if kept_clean.has_history():
        assert "not in this history" in written(tmp_path)["one"]
        head = kept_clean._git("rev-parse", "HEAD")
        assert not written(tmp_path, commit=head)


CHANGED = prove.Tree("a" * 40, ("src/one.py", "src/two.py"))
CLEAN = prove.Tree("a" * 40, ())


def test_a_changed_tree_makes_no_evidence(tmp_path):
    assert not prove.refusal(CLEAN, out=FOLDER, allowed=False)
    said = prove.refusal(CHANGED, out=FOLDER, allowed=False)
    assert "2 files" in said
    assert "src/one.py" in said
    assert "--dirty --out" in said
    assert prove.refusal(CHANGED, out=tmp_path, allowed=False)
    assert not prove.refusal(CHANGED, out=tmp_path, allowed=True)
    assert "--out" in prove.refusal(CLEAN, out=FOLDER, allowed=True)


def test_what_a_proof_writes_does_not_make_its_next_part_unclean(tmp_path, monkeypatch):
    import provenance

    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    (tmp_path / "validation").mkdir()
    for name in ("validation/parity.json", "validation/README.md", "validation/parity_part.py"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    watch = provenance.Watch()
    (tmp_path / "validation/parity.json").write_text("2")
    (tmp_path / "validation/README.md").write_text("2")
    assert watch.tree().changed == ()
    (tmp_path / "validation/new_part.py").write_text("1")
    assert watch.tree().changed == ("validation/new_part.py",)
    (tmp_path / "validation/new_part.py").unlink()
    (tmp_path / "validation/parity_part.py").write_text("2")
    assert watch.tree().changed == ("validation/parity_part.py",)
    git("add", "-A")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "second")
    assert watch.tree().changed == ("HEAD",)


def test_evidence_names_no_folder_of_the_machine_that_made_it():
    from provenance import without_folder

    typed = ["validation/prove.py", "--part", "laws", "--out", "/somewhere", "--quick"]
    assert without_folder(typed) == ["validation/prove.py", "--part", "laws", "--quick"]
    assert without_folder(["prove.py", "--out=/somewhere"]) == ["prove.py"]
    for path in FOLDER.glob("*.json"):
        command = msgspec.json.decode(path.read_bytes())["provenance"]["command"]
        assert " /" not in command, path.name


def test_the_command_refuses_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prove, "tree", lambda: CHANGED)
    monkeypatch.setattr(sys, "argv", ["prove.py", "--part", "laws", "--out", str(tmp_path)])
    assert prove.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
