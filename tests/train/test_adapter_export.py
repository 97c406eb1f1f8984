import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from brimful.build import adapters
from brimful.build.assemble import build_program
from brimful.errors import InputError, RunError
from brimful.train import adapter_export
from brimful.train.adapter_export import export_adapters, merge, plain_model
from brimful.values.job import Adapter
from other_models import make_other_job
from samples import make_job, make_model, make_strategy

pytestmark = [
    pytest.mark.torch,
    # PEFT asks transformers by a name that the latter has replaced.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

KINDS = {
    "lora": ("lora", "same"),
    "dora": ("dora", "same"),
    "nf4-double": ("qlora", "nf4-double"),
    "int8": ("qlora", "int8"),
    "llm-int8": ("qlora", "llm-int8"),
}
ARCHITECTURES = ["llama", "gpt2"]
IDS = torch.arange(40).reshape(2, 20)


def trained_model(kind, architecture="llama", *, trained_modules=(), tied=None, offload="none"):
    """Build a model whose adapters make a difference."""
    method, base = KINDS[kind]
    adapter = Adapter(
        rank=4,
        alpha=6.0,
        targets=("all-linear",),
        trained_modules=trained_modules,
        dtype="same",
        base=base,
        upcast="none",
        input_requires_grad=False,
    )
    model = make_model(architecture, **({} if tied is None else {"tie_word_embeddings": tied}))
    job = make_job(architecture, model=model, method=method, adapter=adapter)
    program = build_program(job, make_strategy(offload=offload), torch.device("cpu"))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in program.model.named_parameters():
            if parameter.requires_grad and ".lora_A." not in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return program.model.eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def base_folder(model, folder):
    """Write the frozen base as anybody would have it."""
    plain = type(model)(model.config)
    weights = {
        known: p.detach().clone()
        for name, p in model.named_parameters()
        if (known := adapters.base_name(name)) is not None
    }
    plain.load_state_dict(weights, strict=False)
    plain.tie_weights()
    plain.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_exported_adapters_load_in_peft_with_equal_logits(kind, architecture, tmp_path):
    model = trained_model(kind, architecture)
    base = base_folder(model, tmp_path / "base")
    export_adapters(model, base=base, folder=tmp_path / "adapters")
    plain = AutoModelForCausalLM.from_pretrained(base)
    without = logits(plain)
    loaded = PeftModel.from_pretrained(plain, tmp_path / "adapters")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)
    assert (logits(loaded) - without).abs().max() > 1e-2
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == base
    assert config["r"] == 4
    assert config["lora_alpha"] == 6.0
    assert config["use_dora"] == (kind == "dora")


def test_modules_that_trained_whole_are_exported_with_the_adapters(tmp_path):
    model = trained_model("lora", trained_modules=("lm_head",))
    base = base_folder(model, tmp_path / "base")
    export_adapters(model, base=base, folder=tmp_path / "adapters")
    names = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert any("lm_head" in name for name in names)
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters"
    )
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)


def test_adapters_of_a_quantised_base_are_no_others(tmp_path):
    for kind in ("lora", "nf4-double"):
        export_adapters(trained_model(kind), base="", folder=tmp_path / kind)
    one, other = (
        load_file(tmp_path / kind / "adapter_model.safetensors") for kind in ("lora", "nf4-double")
    )
    assert {name: x.shape for name, x in one.items()} == {n: x.shape for n, x in other.items()}


@pytest.mark.few
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_model_is_a_plain_one_with_equal_logits(kind, architecture, tmp_path):
    model = trained_model(kind, architecture)
    before = {name: p.clone() for name, p in model.named_parameters()}
    expected = logits(model.train() if kind == "llm-int8" else model)
    merge(model, dtype=torch.float32, folder=tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert type(merged) is type(model)
    assert {p.dtype for p in merged.parameters()} == {torch.float32}
    # In evaluation LLM.int8() rounds its inputs as well, which no merged weight can stand for.
    near = 1e-5 if kind != "llm-int8" else 2e-2
    torch.testing.assert_close(logits(merged), expected, rtol=near, atol=near)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("kind", ["lora", "nf4-double", "int8"])
def test_a_base_on_the_host_is_merged_as_one_that_is_here(kind):
    here, away = (
        plain_model(trained_model(kind, offload=offload), dtype=torch.float32).state_dict()
        for offload in ("none", "parameters")
    )
    assert all(torch.equal(tensor, away[name]) for name, tensor in here.items())


@pytest.mark.parametrize("tied", [True, False])
def test_ties_and_trained_modules_survive_a_merge(tied, tmp_path):
    model = trained_model("lora", tied=tied, trained_modules=() if tied else ("lm_head",))
    merge(model, dtype=torch.float32, folder=tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-5, atol=1e-5)
    assert (merged.lm_head.weight is merged.get_input_embeddings().weight) is tied


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_head_of_its_own_survives_a_merge_whatever_the_class_thinks_of_ties():
    """T5's configuration says that it is tied even where its checkpoints are not."""
    adapter = Adapter(
        rank=4,
        alpha=6.0,
        targets=("all-linear",),
        trained_modules=("lm_head",),
        dtype="same",
        base="same",
        upcast="none",
        input_requires_grad=False,
    )
    job = make_other_job("t5-untied", method="lora", adapter=adapter)
    model = build_program(job, make_strategy(), torch.device("cpu")).model
    config = model.config.to_dict()
    head = model.lm_head.modules_to_save["default"].weight
    plain = plain_model(model, dtype=torch.float32)
    assert torch.equal(plain.lm_head.weight, head)
    assert not torch.equal(plain.lm_head.weight, plain.shared.weight)
    assert model.config.to_dict() == config


def test_a_merge_is_written_in_the_type_that_is_asked_for(tmp_path):
    merge(trained_model("int8"), dtype=torch.bfloat16, folder=tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert {p.dtype for p in merged.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("write", [export_adapters, merge])
def test_what_was_there_before_outlives_a_full_disk(write, tmp_path, monkeypatch):
    model = trained_model("lora")
    how = {"base": ""} if write is export_adapters else {"dtype": torch.float32}
    folder = tmp_path / "out"
    write(model, folder=folder, **how)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    monkeypatch.setattr(type(model), "save_pretrained", full)
    with pytest.raises(RunError, match="no space left"):
        write(model, folder=folder, **how)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("write", [export_adapters, merge])
def test_a_model_without_adapters_has_none_to_write(write, tmp_path):
    model = build_program(make_job(), make_strategy(), torch.device("cpu")).model
    how = {"base": ""} if write is export_adapters else {"dtype": torch.float32}
    with pytest.raises(InputError, match="no adapters"):
        write(model, folder=tmp_path / "out", **how)


def test_only_the_names_of_peft_are_written(tmp_path):
    model = trained_model("lora")
    export_adapters(model, base="", folder=tmp_path / "out")
    names = load_file(tmp_path / "out" / adapter_export.WEIGHTS)
    assert len(names) == 2 * len(list(adapters.adapted_layers(model)))
    assert all(name.startswith("base_model.model.model.layers.") for name in names)
    assert all(name.endswith(("lora_A.weight", "lora_B.weight")) for name in names)
