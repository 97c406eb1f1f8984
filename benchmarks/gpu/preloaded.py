"""What every piece of work imports; the server that forks processes has imported it.

Nothing here may touch a GPU: a fork of a process that has cannot. torchao asks for the GPU when it
is imported, which transformers does where it finds it; so it finds none.
"""

import sys
from importlib import import_module

_MODULES = (
    "transformers.models.auto.modeling_auto", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "brimful.build.assemble", "brimful.build.step",
    "brimful.measure.meter", "brimful.simulate.run", "brimful.simulate.unrolled",
)  # fmt: skip

sys.modules["torchao"] = None  # type: ignore[assignment]  # what imports take for absent
for _name in _MODULES:
    import_module(_name)
del sys.modules["torchao"]
