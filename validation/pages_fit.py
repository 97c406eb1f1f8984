"""Every page at the width of a phone and of a desk: nothing is cut, nothing is told in the console.

``python validation/pages_fit.py [PAGE ...]`` makes the pages that commands write (or takes those
that are given), opens each in headless Chromium at both widths, and prints what juts out of the
window, which columns are cut, and what the console says. 1 where anything does. With ``--keep
FOLDER`` pages and pictures are left there to be looked at.
"""

import argparse
import html
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WIDTHS = (390, 1440)
HEIGHT = 4000
_JOB = "llama-3.2-1b --gpus h100-80gb --seq-len 2048 --global-batch 8"
COMMANDS = {
    "estimate": f"estimate {_JOB} --micro-batch 1 --page PAGE",
    "plan": f"plan {_JOB} --page PAGE",
    "simulate": f"simulate {_JOB} --micro-batch 1 --page PAGE",
    "pretend": "pretend --gpu rtx-4090 --page PAGE -- examples/plain_loop.py --bf16",
    "shop": "shop llama-3.2-1b --tokens 1B --gpus rtx-4090,l40s,h100 -o PAGE",
    "infer": "estimate llama-3.1-8b --task inference --gpus rtx-4090 --page PAGE",
}
"""What writes each page; ``PAGE`` is its path."""
_PROBE = """<!doctype html><iframe id="page" src="{src}" style="width:{width}px;height:{height}px;
border:0"></iframe><pre id="found"></pre><script>
const frame = document.getElementById("page");
frame.onload = () => {{
  const root = frame.contentDocument.documentElement, found = [];
  if (root.scrollWidth > {width}) found.push("the page is " + root.scrollWidth + " px wide");
  const scrolls = (e) => e && (["auto", "scroll"].includes(
    frame.contentWindow.getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  for (const e of root.querySelectorAll("body *")) {{
    const box = e.getBoundingClientRect(), style = frame.contentWindow.getComputedStyle(e);
    if (!box.width || e.closest("svg") !== (e.tagName === "svg" ? e : null)) continue;
    const what = e.tagName.toLowerCase() + (e.className ? "." + e.className : "");
    if (box.right > {width} + 1 && !scrolls(e.parentElement)) found.push(what + " juts out");
    if (style.overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1)
      found.push(what + " is cut: " + e.textContent.slice(0, 40));
  }}
  document.getElementById("found").textContent = JSON.stringify([...new Set(found)]);
}};
</script>"""


def main() -> int:
    """Make the pages, look at each, print; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("pages_fit.py: chromium is not installed", file=sys.stderr)
        return 2
    num_wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for page in args.pages or made(folder):
            for width in WIDTHS:
                found = list(looked_at(browser, page.resolve(), width, folder))
                num_wrong += bool(found)
                print(f"{page.name:16}{width:5} px  {'; '.join(found) or 'fits'}", flush=True)
    return int(num_wrong > 0)


def made(folder: Path) -> Iterator[Path]:
    """Run every command, and yield the page that it writes."""
    for name, command in COMMANDS.items():
        page = folder / f"{name}.html"
        words = [str(page) if word == "PAGE" else word for word in shlex.split(command)]
        done = subprocess.run(  # noqa: S603 - our own table
            [sys.executable, "-m", "brimful", *words], capture_output=True, text=True, check=False
        )
        if done.returncode > 1:
            raise RuntimeError(f"brimful {command}: {done.stderr}")
        yield page


def looked_at(browser: str, page: Path, width: int, folder: Path) -> Iterator[str]:
    """Open a page at a width, and yield what is wrong; leave a picture beside it."""
    probe = folder / f"{page.stem}-{width}.probe.html"
    probe.write_text(_PROBE.format(src=html.escape(page.as_uri()), width=width, height=HEIGHT))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
             "--enable-logging=stderr", f"--window-size={max(width, 500)},{HEIGHT}"]  # fmt: skip
    dumped = subprocess.run(  # noqa: S603 - our own page
        [browser, *flags, "--virtual-time-budget=5000", "--dump-dom", probe.as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = re.search(r'<pre id="found">(.*?)</pre>', dumped.stdout, re.DOTALL)
    if told is None or not told[1]:
        yield "it did not load"
        return
    yield from json.loads(html.unescape(told[1]))
    yield from (line for line in dumped.stderr.splitlines() if "CONSOLE" in line)
    picture = folder / f"{page.stem}-{width}.png"
    subprocess.run(  # noqa: S603 - our own page
        [browser, *flags, f"--screenshot={picture}", probe.as_uri()],
        capture_output=True, check=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
