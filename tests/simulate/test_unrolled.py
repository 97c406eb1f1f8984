"""A few blocks, unrolled, are the whole model: for adapters, quantised bases, other decoders."""

import msgspec
import pytest

from brimful.models.config import read_config
from brimful.models.mixtures import known_experts
from brimful.simulate import unrolled
from brimful.simulate.run import trace
from other_decoders import CONFIGS
from samples import make_adapter, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_BLOCKS = 7
BASE = make_adapter()


def adapted(precision, base):
    adapter = msgspec.structs.replace(BASE, base=base)
    model = make_model(num_hidden_layers=NUM_BLOCKS)
    return make_job(model=model, method="lora", adapter=adapter, precision=precision)


def other(model_type, **changes):
    config = {**CONFIGS[model_type], "num_hidden_layers": NUM_BLOCKS, **changes}
    return make_job(model=read_config(f"tiny-{model_type}", {"model_type": model_type, **config}))


JOBS = {
    "lora": adapted("bf16", "same"),
    "lora, 16-bit base": adapted("bf16-mixed", "bf16"),
    "nf4": adapted("bf16-mixed", "nf4"),
    "nf4-double": adapted("bf16", "nf4-double"),
    "int8": adapted("bf16", "int8"),
    "LLM.int8()": adapted("bf16", "llm-int8"),
    "mistral": other("mistral"),
    "qwen3": other("qwen3"),
    "phi3": other("phi3"),
    "mixtral": other("mixtral"),
    "deepseek_v3": other("deepseek_v3", num_hidden_layers=NUM_BLOCKS + 3, first_k_dense_replace=2),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_few_blocks_unrolled_are_the_whole_model(name, checkpointing):
    job, strategy = JOBS[name], make_strategy(activation_checkpointing=checkpointing)
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    num_layers = job.model.num_layers
    num_first = known_experts(job.model).sparse_blocks[0] if name == "deepseek_v3" else 0
    num_deep = unrolled.NUM_DEEP_PREFIXED if num_first else unrolled.NUM_DEEP
    assert depths == [num_first + num_deep, num_first + unrolled.NUM_SHALLOW, num_layers]
    assert (short.events == whole.events).all()
    assert (short.num_bytes == whole.num_bytes).all()
    assert [short.owners[i] for i in short.owner] == [whole.owners[i] for i in whole.owner]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "job",
    [
        other("qwen2"),
        other("qwen3_moe", mlp_only_layers=[1]),
        other("qwen3", layer_types=["full_attention"] * NUM_BLOCKS),
    ],
)
def test_blocks_of_several_kinds_are_traced_whole(job):
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    unrolled.record_whole(job, make_strategy(), record)
    assert depths == [NUM_BLOCKS]
