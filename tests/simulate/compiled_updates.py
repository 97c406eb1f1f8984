"""What a compiled update allocates on the pretend GPU, beside the figure from the table.

Runs in a process of its own: what the compiler keeps of pretend devices would be taken for real.
"""

import warnings

from brimful.build.optimizers.low_bit import LowBitAdamW
from brimful.pretend.cuda_mode import compiling
from brimful.pretend.tape import Tape
from brimful.simulate import pretending, run
from brimful.values.job import check_job
from samples import make_cluster, make_job, make_model, make_strategy
from tapes import taken_by_update


def taken(case):
    """Return what an update takes by the table, by its code, and without it."""
    optimizer, width = case
    warnings.simplefilter("ignore")  # the compiler's own
    sizes = {"hidden_size": width, "intermediate_size": width, "head_dim": width // 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1}
    model = make_model("llama", vocab_size=4000, **sizes, **heads)
    fields = {"precision": "fp32", "optimizer": optimizer, "seq_len": 16, "global_batch": 2}
    job, strategy = check_job(make_job(model=model, **fields)), make_strategy(micro_batch=2)

    def once():
        simulated = run.simulate_recorded(job, make_cluster("cuda"), strategy)
        return int(taken_by_update(simulated.recording))

    by_table, plain = once(), pretending.compiler_of
    LowBitAdamW._update = lambda self, *update: self._compiled(*self._call(*update))
    pretending.compiler_of = lambda *_: compiling(Tape, set())
    by_code = once()
    pretending.compiler_of = plain
    LowBitAdamW._update = lambda *_: None
    return by_table, by_code, once()
