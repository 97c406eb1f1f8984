"""YAML as people write it: ``3e-4`` is a number, and a key stands once; and writing what it reads.

PyYAML follows YAML 1.1, where ``3e-4`` is text, and takes the last of two equal keys in silence.
"""

import re
from functools import cache
from typing import Any

_FLOAT_1_2 = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+")
"""Numbers with an exponent as YAML 1.2 has them (section 10.3.2)."""
_NUMBERS = ("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+.0123456789"))
MOST_LEVELS = 64
"""Brackets within brackets; PyYAML's scanner takes the square of them."""
MOST_VALUES = 100_000
"""Values of a document once every alias is written out; a few lines of aliases can be billions."""


def _count(node: Any, known: dict[int, float]) -> float:
    """Count the values of a node, as often as aliases repeat them; inf where it holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        inner = node.value if isinstance(node.value, list) else []
        parts = [part for each in inner for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


@cache
def loader(*, last_counts: bool = False) -> Any:
    """Return the loader's class; yaml is imported here, where it is used.

    ``last_counts``: whether of a key that is given twice the last one counts, and is no mistake.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """A SafeLoader with YAML 1.2's numbers that refuses a key given twice, and bombs."""

        def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's
            if self.flow_level >= MOST_LEVELS:
                problem = f"more than {MOST_LEVELS} brackets within one another"
                raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())
            super().fetch_flow_collection_start(TokenClass)

        def get_single_node(self) -> Any:
            node = super().get_single_node()
            if node is not None and (num := _count(node, {})) > MOST_VALUES:
                problem = f"its aliases stand for {num} values and {MOST_VALUES} are read"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return node

    def mapping(self: Any, node: Any) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and not last_counts:
                problem = f"{key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        self.flatten_mapping(node)
        return {
            self.construct_object(key, deep=True): self.construct_object(value, deep=True)
            for key, value in node.value
        }

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_implicit_resolver(*_NUMBERS)
    return Loader


@cache
def dumper() -> Any:
    """Return the class that writes what ``loader`` reads: it quotes a name such as ``1e3``."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """A SafeDumper that knows YAML 1.2's numbers."""

    Dumper.add_implicit_resolver(*_NUMBERS)
    return Dumper
