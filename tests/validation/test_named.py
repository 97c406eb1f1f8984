"""The counter of files that name a technique, and its bar for optimizers."""

import named
import pytest

from brimful.techniques.optimizers import OPTIMIZERS

KIND = named.Kind(("adamw", "adamw-8bit", "sgd", "ep"), frozenset({"AdamW"}))


def names_in(tmp_path, text, *, name="some.py"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return named.named_in(path, KIND)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import brimful.adamw_8bit", {"adamw-8bit"}),
        ("from brimful.sgd import SGD as rule", {"sgd"}),
        ("ADAMW = 1", {"adamw"}),
        ("x = {'adamw-8bit': 1}", {"adamw-8bit"}),
        ("raise ValueError('use optimizer=adamw, or none')", {"adamw"}),
        ("x = f'{y} and sgd'", {"sgd"}),
        ("def f(ep): return a.num_ep", {"ep"}),
        ("call(ep=2)", {"ep"}),
        ("step = deep = 'keep stepping'", set()),
        ("x = torch.optim.AdamW  # adamw", set()),
        ("x = 'AdamW rounds'", set()),
        ("'''A docstring: adamw and sgd.'''", set()),
        ("x = '_fused_sgd_'", set()),
    ],
)
def test_identifiers_and_strings_count_and_prose_does_not(tmp_path, text, found):
    assert names_in(tmp_path, text) == found


def test_keys_of_data_and_names_of_files_count_and_values_of_data_do_not(tmp_path):
    assert names_in(tmp_path, '{"a": [{"sgd": 1}], "b": "adamw"}', name="x.json") == {"sgd"}
    assert names_in(tmp_path, "", name="adamw_8bit.py") == {"adamw-8bit"}


def test_a_folder_of_data_counts_once_however_many_files_it_has(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"sgd": 1}', "utf-8")
    (tmp_path / "c.py").write_text("sgd = 1", "utf-8")
    assert named.count(tmp_path, KIND)["sgd"] == [tmp_path, tmp_path / "c.py"]


def test_no_optimizer_is_named_in_more_than_three_files():
    found = named.count(named.SOURCE, named.kinds()["optimizer"])
    assert set(found) == set(OPTIMIZERS)
    assert {
        name: files for name, files in found.items() if len(files) > named.MOST_OF_OPTIMIZER
    } == {}


def test_every_kind_is_counted(capsys):
    assert named.main(["--files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == set(named.kinds())
