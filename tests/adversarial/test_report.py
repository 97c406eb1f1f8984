"""Names that are HTML: a report shows them and runs none of them."""

import json

from tests.cli.conftest import brimful, folder  # noqa: F401 - fixtures

SCRIPT = "<script>alert(1)</script>"
IMAGE = "run<img src=x onerror=alert(1)>"


def test_no_name_is_markup_in_a_report(brimful, folder):  # noqa: F811
    run = folder / IMAGE
    run.mkdir()
    assert brimful("plan", "gpt2", "--gpus", "h100-80gb", "-o", f"{IMAGE}/plan.yaml").code in {0, 1}
    plan = (run / "plan.yaml").read_text()
    (run / "plan.yaml").write_text(plan.replace("name: gpt2", f"name: {json.dumps(SCRIPT)}"))
    (run / "commands.txt").write_text(f"brimful train '{SCRIPT}'\n")
    assert brimful("report", IMAGE).code == 0
    page = (run / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert SCRIPT not in page
    assert "<img src=x" not in page
