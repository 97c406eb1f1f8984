"""The commands of the cookbook, the tour and the FAQ print what the pages show."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NUM_RECIPES = 13
MOST_WORDS = 1200
NUM_README_COMMANDS = 4


def script(name):
    """Load a script of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


recipes = script("run_recipes")


@pytest.mark.long
@pytest.mark.parametrize("page", recipes.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page):
    found = [recipes.differences(*pair) for pair in recipes.run_page(page, slow=False)]
    assert not any(found), "\n".join(found) + "\nrun: python docs/run_recipes.py --write"


def test_every_command_is_run():
    """A console block without a mark would be a promise that nobody keeps."""
    for page in recipes.PAGES:
        blocks = recipes.blocks_of(page)
        assert len(blocks) == page.read_text("utf-8").count("```console"), page
        for block in blocks:
            if "report" not in block.command and "python -c" not in block.command:
                assert block.output, block.command


def test_there_are_thirteen_recipes():
    pages = [page for page in (DOCS / "cookbook").glob("*.md") if page.stem != "index"]
    assert len(pages) >= NUM_RECIPES
    for page in pages:
        assert recipes.blocks_of(page), page
        assert "## What it means" in page.read_text("utf-8"), page
        assert f"({page.name})" in (DOCS / "cookbook" / "index.md").read_text("utf-8"), page


def test_a_difference_is_found():
    block = recipes.Block(Path("x.md"), "brimful gpus", "fits: 1 GiB\n", (), (0, 0))
    assert recipes.differences(block, "fits: 2 GiB\n")
    assert not recipes.differences(block, "fits: 1 GiB\n")
    timed = block._replace(rules=("measured",))
    assert not recipes.differences(timed, "fits: 2 GiB\n")
    assert recipes.differences(timed, "does not fit: 2 GiB\n")


def test_lines_are_picked_by_number_and_by_pattern():
    assert recipes.shown("a\nb\nc\nd\n", "1,/d/") == "a\n...\nd\n"
    assert recipes.shown("a\n\nb\n", "1,3") == "a\nb\n"
    assert recipes.shown("", "") == ""


def test_a_wrong_exit_code_is_said(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- run: -->\n```console\n$ brimful estimate no-such-model\n```\n")
    with pytest.raises(RuntimeError, match="ended with 2"):
        list(recipes.run_page(page, slow=False))


def test_the_accuracy_page_is_up_to_date():
    accuracy = script("generate_accuracy")
    assert (DOCS / "accuracy.md").read_text("utf-8") == accuracy.page(), (
        "run: python docs/generate_accuracy.py"
    )


def test_the_accuracy_plots_are_up_to_date():
    accuracy = script("generate_accuracy")
    drawn = {path.name: path.read_text("utf-8") for path in (DOCS / "accuracy").glob("*.svg")}
    assert drawn == accuracy.plots(), "run: python docs/generate_accuracy.py"


def test_the_accuracy_page_shows_all_evidence():
    """Host memory has a schema and bars of its own, which validation/README.md tells."""
    accuracy = script("generate_accuracy")
    files = {path.stem for path in (ROOT / "validation").glob("*.json")} - {"host_memory"}
    assert files <= accuracy.named_files()


def test_the_example_of_the_api_page_runs(capsys):
    text = (DOCS / "api.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    exec(compile(code, "api.md", "exec"), {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out.splitlines()
    items = [int(line.rpartition(" ")[2]) for line in printed[1:]]
    assert int(printed[0].split()[0]) == sum(items)


def test_both_readmes_name_the_same_verbs():
    from brimful.cli.main import VERBS

    named = [
        {verb for verb in VERBS if re.search(rf"^(\$ )?brimful {verb}\b", text, re.MULTILINE)}
        for text in ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    ]
    assert named[0] == named[1] >= {"pretend", "plan", "shop"}


@pytest.mark.parametrize(
    ("begin", "num_commands"),
    [
        (("brimful pretend", "brimful plan llama-3.1-8b --gpus rtx-4090"), 2),
        # Of all; screens of a plan that does not fit and of a market are in tests/show.
        pytest.param(("",), NUM_README_COMMANDS, marks=pytest.mark.long),
    ],
)
def test_the_readme_is_short_and_shows_what_its_commands_print(begin, num_commands):
    readme = ROOT / "README.md"
    assert len(readme.read_text("utf-8").split()) <= MOST_WORDS
    run = recipes.run_page(readme, slow=True, begin=begin)
    found = [recipes.differences(*pair) for pair in run]
    assert len(found) == num_commands
    assert not any(found), "\n".join(found) + "\nrun: python docs/run_recipes.py README.md --write"
