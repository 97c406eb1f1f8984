"""Lines of a script whose loops keep what they make."""

import pytest

from brimful.pretend.kept_lines import KeptLine, kept_lines


def lines_of(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return kept_lines(path)


def test_what_a_loop_appends_or_adds_up_is_named_with_its_line(tmp_path):
    text = """
outside.append(model)
for batch in data:
    out = model(batch)
    seen.logits.append(out.logits)
    while more:
        total += out.loss
"""
    assert lines_of(tmp_path, text) == (KeptLine(5, "seen.logits"), KeptLine(7, "total"))


@pytest.mark.parametrize(
    "line",
    [
        "losses.append(loss.item())",
        "losses.append(out.logits.detach().cpu())",
        "total += float(loss)",
        "count += 1",
        "names.append('text')",
        "print(loss)",
    ],
)
def test_what_keeps_no_graph_is_not(tmp_path, line):
    assert lines_of(tmp_path, f"for batch in data:\n    {line}\n") == ()


@pytest.mark.parametrize("text", ["for x in:", "\0", ""])
def test_what_is_no_script_has_none(tmp_path, text):
    assert lines_of(tmp_path, text) == ()
    assert kept_lines(tmp_path / "absent.py") == ()
