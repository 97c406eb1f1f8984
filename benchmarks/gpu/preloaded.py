"""What every piece of work imports; the server that forks processes has imported it.

Nothing here may touch a GPU: a fork of a process that has cannot.
"""

import transformers.models.auto.modeling_auto
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama  # noqa: F401

import brimful.build.assemble
import brimful.build.step
import brimful.measure.meter
import brimful.simulate.run
import brimful.simulate.unrolled  # noqa: F401
