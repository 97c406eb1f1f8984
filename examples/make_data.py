"""Make small training sets out of text that every machine has: Python's own standard library.

    python examples/make_data.py chat data/chat.jsonl
    python examples/make_data.py classify data/classify.csv
    python examples/make_data.py prefer data/prefer.jsonl
    python examples/make_data.py names data/names.jsonl

Nothing is downloaded. The same Python gives the same files.
"""

import argparse
import ast
import csv
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import cast

LIBRARY = Path(sysconfig.get_path("stdlib"))
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest")
SNIPPET_LINES = 6
ANSWER_LENGTHS = range(20, 201)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def chat() -> Iterator[dict[str, object]]:
    """Yield one question and answer per documented function: what it does, in its own words."""
    for path in sorted(LIBRARY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            said = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").strip()
            if len(said) in ANSWER_LENGTHS:
                question = f"What does {path.stem}.{node.name} do?"
                yield {
                    "messages": [
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": said},
                    ]
                }


def prefer() -> Iterator[dict[str, object]]:
    """Yield questions of ``chat``, each answered to the point, and with a pleasantry before it."""
    for conversation in chat():
        question, answer = cast("list[dict[str, str]]", conversation["messages"])
        polite = {**answer, "content": f"Great question! {answer['content']}"}
        yield {"prompt": [question], "chosen": [answer], "rejected": [polite]}


def classify() -> Iterator[dict[str, object]]:
    """Yield snippets of code, labelled with the package that they come from."""
    for label, package in enumerate(PACKAGES):
        for path in sorted((LIBRARY / package).glob("*.py")):
            lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
            for start in range(0, len(lines) - SNIPPET_LINES, SNIPPET_LINES):
                yield {"text": "\n".join(lines[start : start + SNIPPET_LINES]), "label": label}


def names() -> Iterator[dict[str, object]]:
    """Yield names in camel case and the words that they are made of."""
    seen: set[str] = set()
    for path in sorted(LIBRARY.rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        seen.update(re.findall(r"\b[a-z]+(?:[A-Z][a-z]+)+\b", path.read_text("utf-8", "replace")))
    for name in sorted(seen):
        yield {"source": name, "target": " ".join(_WORDS.findall(name)).lower()}


KINDS = {"chat": chat, "classify": classify, "names": names, "prefer": prefer}


def main() -> None:
    """Write one data set, shuffled with a fixed seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    rows = list(KINDS[args.kind]())
    random.Random(0).shuffle(rows)  # noqa: S311 - the same every time, and no secret
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        if args.out.suffix == ".csv":
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} rows in {args.out}")


if __name__ == "__main__":
    main()
