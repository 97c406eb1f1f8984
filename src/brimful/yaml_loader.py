"""Reading YAML as people write it: ``3e-4`` is a number, and a key stands once.

PyYAML follows YAML 1.1, where ``3e-4`` is text, and takes the last of two equal keys in silence.
"""

import re
from functools import cache
from typing import Any

_FLOAT_1_2 = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+")
"""Numbers with an exponent as YAML 1.2 has them (section 10.3.2)."""


@cache
def loader() -> Any:
    """Return the loader's class; yaml is imported here, where it is used."""
    import yaml

    class Loader(yaml.SafeLoader):
        """A SafeLoader with YAML 1.2's numbers that refuses a key given twice."""

    def mapping(self: Any, node: Any) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
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
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+.0123456789"))
    return Loader
