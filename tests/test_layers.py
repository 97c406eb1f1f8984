"""Imports run one way: a layer imports only from those before it, and never in a circle."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
LAYERS = (
    (
        "errors",
        "units",
        "text",
        "process",
        "files",
        "techniques.optimizers",
        "allocator",
    ),
    ("models",),
    (
        "values.flag",
        "values.job",
        "values.strategy",
        "values.task_words",
        "techniques",
        "build.deepspeed.config",  # DeepSpeed's JSON, of which formulas ask the sizes too
        "hardware.cluster",
    ),
    ("models.config", "models.resized", "models.kernels", "models.targets", "hardware"),
    ("values",),
    ("cost", "programs.base"),
    ("megatron",),
    ("search",),
    ("rules",),
    ("loop_phases",),
    ("pretend", "build"),
    ("simulate",),
    ("programs",),
    ("published",),
    ("doctor",),
    ("train",),
    ("measure",),
    ("launch",),
    ("compare",),
    ("measure.verdict",),
    ("show",),
    ("report",),
    ("export",),
    ("watch",),
    ("cli", "__main__", "api", "web"),
)
"""Values that others are made of come before the package that reads them from files; what is asked
of a technique before a job is one, the optimizers' records, before what is asked of both."""
PLANNING = ("", ".models.config", ".hardware.gpus", ".hardware.probe", ".values.plan",
            ".measure.verdict", ".cost.estimate", ".search.solve", ".search.holding",
            ".search.explain", ".rules.table", ".report.text", ".published.scoreboard",
            ".report.validate")  # fmt: skip


def module_name(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(path):
    """List the modules of ours that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {name for name in found if name.split(".")[0] == "brimful"}


def layer(module):
    """Return the place of a module in the order, by the longest name that fits."""
    name = module.removeprefix("brimful").removeprefix(".")
    fits = [
        (len(part), place)
        for place, parts in enumerate(LAYERS)
        for part in parts
        if name == part or name.startswith(part + ".")
    ]
    assert fits, f"{module} has no layer; give it its place in LAYERS"
    return max(fits)[1]


@pytest.fixture(scope="module")
def graph():
    """What each module imports: read when a test asks, as every worker collects this file."""
    return {module: imports(path) for module, path in MODULES.items()}


def test_every_module_imports_only_from_its_own_layer_and_those_before(graph):
    later = {
        f"{module} imports {other}"
        for module in graph.keys() - {"brimful"}
        for other in graph[module] - {"brimful"}
        if layer(other) > layer(module)
    }
    assert not later


def test_the_build_path_and_the_pretend_gpu_know_nothing_of_each_other(graph):
    for one, other in (("build", "pretend"), ("pretend", "build")):
        known = set().union(*(graph[name] for name in graph if name.startswith(f"brimful.{one}")))
        assert not [name for name in known if name.startswith(f"brimful.{other}")]


def test_no_module_imports_in_a_circle(graph):
    order = list(TopologicalSorter(graph).static_order())
    assert set(MODULES) <= set(order)


def test_nothing_imports_the_command_line(graph):
    outside = {name for name in graph if name == "brimful" or layer(name) < len(LAYERS) - 1}
    known = {other for name in outside for other in graph[name]}
    assert not [other for other in known if f"{other}.".startswith("brimful.cli.")]


def test_the_meter_shares_no_instrument_with_the_tape(graph):
    for name in ("meter", "allocations", "reading"):
        assert not [other for other in graph[f"brimful.measure.{name}"] if "pretend" in other]


def test_planning_imports_no_torch():
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"for module in {PLANNING!r}:\n"
        "    import_module(f'brimful{module}')\n"
        "    found = [m for m in ('torch', 'transformers') if m in sys.modules]\n"
        "    assert not found, (module, found)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_imports_neither_numpy_nor_rich():
    code = "import sys, brimful; print([m for m in ('numpy', 'rich', 'yaml') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
