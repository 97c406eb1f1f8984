import pytest
import torch
from tests.models.meta import SMALL
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from brimful.cost.formats import COMPUTE_BYTES, FORMATS, SERVED
from brimful.cost.held import INT4_GROUP, held_bytes, pack
from brimful.cost.kv_cache import CACHED
from brimful.models.config import load_model, read_config
from brimful.models.layout import Parameter

pytestmark = pytest.mark.torch

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDE = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 32, "num_attention_heads": 8}
"""Rows that torchao's groups of 128 divide, but for one matrix of 384 + 8 below."""
MEDIUM = {
    "vocab_size": 5003,
    "hidden_size": 512,
    "intermediate_size": 1400,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 72,
    "attention_bias": True,
}
BITSANDBYTES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-double": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "llm-int8": {"load_in_8bit": True},
}


def spec_of(model_type, **changes):
    return read_config("tiny", {"model_type": model_type, **SMALL[model_type], **changes})


def saved(spec, folder):
    torch.manual_seed(0)
    config = AutoConfig.for_model(spec.model_type, **spec.hf_config)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def load(folder, weights_format, compute):
    """Load a model as its users do."""
    kwargs = {}
    if weights_format in BITSANDBYTES:
        kwargs["quantization_config"] = BitsAndBytesConfig(**BITSANDBYTES[weights_format])
    return AutoModelForCausalLM.from_pretrained(folder, dtype=TYPES[compute], **kwargs)


def tensors_in(x):
    """List the plain tensors that a parameter is made of, what it needs to be read included."""
    if hasattr(type(x), "__tensor_flatten__") and type(x) not in (torch.Tensor, torch.nn.Parameter):
        return [t for name in x.__tensor_flatten__()[0] for t in tensors_in(getattr(x, name))]
    state = getattr(x, "quant_state", None)
    found = [x, getattr(x, "SCB", None)]
    if state is not None:
        found += [state.absmax, state.code, state.offset]
        found += [state.state2.absmax, state.state2.code] if state.state2 is not None else []
    return [t for t in found if isinstance(t, torch.Tensor)]


def real_bytes(model):
    """Sum the storages of everything that a model holds, each once."""
    held = [t for x in (*model.parameters(), *model.buffers()) for t in tensors_in(x)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}
    return sum(storages.values())


@pytest.mark.few
@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model_type", CACHED)
def test_whole_weights_are_those_of_the_loaded_model(model_type, compute, tmp_path):
    spec = spec_of(model_type)
    model = load(saved(spec, tmp_path), compute, compute)
    assert held_bytes(spec, compute, compute).total == real_bytes(model)
    assert held_bytes(spec, compute, compute).quantized == 0


@pytest.mark.few
@pytest.mark.parametrize("weights_format", list(BITSANDBYTES))
@pytest.mark.parametrize("model_type", CACHED)
def test_bitsandbytes_weights_are_those_of_the_loaded_model(model_type, weights_format, tmp_path):
    pytest.importorskip("bitsandbytes")
    spec = spec_of(model_type)
    model = load(saved(spec, tmp_path), weights_format, "bf16")
    held = held_bytes(spec, weights_format, "bf16")
    packed = [p for p in model.parameters() if p.dtype in {torch.uint8, torch.int8}]
    assert packed
    assert held.quantized == sum(p.numel() for p in packed)
    assert held.total == real_bytes(model)


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("weights_format", list(BITSANDBYTES))
@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma2", "gpt2"])
def test_what_stays_whole_has_the_type_that_is_computed_in(
    model_type, weights_format, compute, tmp_path
):
    pytest.importorskip("bitsandbytes")
    spec = spec_of(model_type)
    model = load(saved(spec, tmp_path), weights_format, compute)
    assert held_bytes(spec, weights_format, compute).total == real_bytes(model)


@pytest.mark.few
@pytest.mark.parametrize("weights_format", [*BITSANDBYTES, "bf16"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_a_medium_model_in_every_format(model_type, weights_format, tmp_path):
    pytest.importorskip("bitsandbytes")
    gpt2 = {"n_embd": 336, "n_inner": 1000, "n_layer": 4, "n_head": 6, "vocab_size": 5003}
    spec = spec_of(model_type, **(gpt2 if model_type == "gpt2" else MEDIUM))
    model = load(saved(spec, tmp_path), weights_format, "bf16")
    held = held_bytes(spec, weights_format, "bf16")
    assert held.total == real_bytes(model)
    assert min(held.quantized, held.whole) > 0 or weights_format == "bf16"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.few
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("weights_format", ["int8", "int4"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "gemma2"])
def test_torchao_weights_are_those_of_its_own_modules(
    model_type, weights_format, compute, tmp_path
):
    quantization = pytest.importorskip("torchao.quantization")
    spec = spec_of(model_type, **({} if model_type == "gpt2" else WIDE))
    model = load(saved(spec, tmp_path), compute, compute)
    head = model.get_output_embeddings()
    config = quantization.Int8WeightOnlyConfig()
    if weights_format == "int4":
        cpu = pytest.importorskip("torchao.prototype.quantization.int4.inference_workflow")
        config = cpu.PrototypeInt4WeightOnlyConfig()
    # As transformers does: every nn.Linear but the output layer.
    quantization.quantize_(
        model, config, filter_fn=lambda m, _: isinstance(m, torch.nn.Linear) and m is not head
    )
    held = held_bytes(spec, weights_format, compute)
    assert held.total == real_bytes(model)
    assert bool(held.quantized) == (model_type != "gpt2")


def test_by_hand():
    weight = Parameter("q.weight", (96, 256), "linear")
    assert pack(weight, "int8", "bf16") == (96 * 256, 96 * 5)
    assert pack(weight, "llm-int8", "bf16") == (96 * 256, 96 * 4)
    assert pack(weight, "nf4", "bf16") == (96 * 128, 96 * 4 * 4 + 64)
    assert pack(weight, "int4", "bf16") == (96 * 128, 96 * 2 * 2 * 2)
    assert pack(weight._replace(shape=(256, 96)), "int4", "bf16") is None
    conv = weight._replace(kind="conv1d")
    assert pack(conv, "llm-int8", "bf16") == (96 * 256, 256 * 4)
    assert pack(conv, "int8", "bf16") is None
    assert INT4_GROUP == 128


@pytest.mark.parametrize("weights_format", [name for name in FORMATS if name not in SERVED])
def test_of_a_mixture_the_experts_stay_whole(weights_format):
    spec = load_model("mixtral-8x7b")
    compute = weights_format if weights_format in COMPUTE_BYTES else "bf16"
    held = held_bytes(spec, weights_format, compute)
    assert held.whole > 0.95 * held_bytes(spec, compute, compute).whole
