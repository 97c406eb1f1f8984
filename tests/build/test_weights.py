"""Weights are those that ``from_pretrained`` loads, bit for bit, and never twice in memory."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

import processes
from brimful.build import weight_files
from brimful.build.added_rows import fill_added
from brimful.build.assemble import build_program
from brimful.build.weights import load, open_checkpoint
from brimful.errors import InputError
from brimful.models.config import read_config
from brimful.models.resized import with_num_labels, with_vocab_size
from brimful.values.job import Adapter
from other_models import CNN, CONFIGS, make_other_job, make_other_model
from samples import make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
CLASSES = {
    "causal-lm": AutoModelForCausalLM,
    "sequence-classification": AutoModelForSequenceClassification,
    "seq2seq": AutoModelForSeq2SeqLM,
}
DECODERS = {
    "llama": make_model("llama"),
    "llama-tied": make_model("llama", tie_word_embeddings=True),
    "gpt2": make_model("gpt2"),
}
NAMES = [*DECODERS, "bert", "t5", "t5-untied", "switch"]


def job_for(name, **changes):
    if name in DECODERS:
        return make_job(model=changes.pop("model", DECODERS[name]), **changes)
    return make_other_job(name, **changes)


def strategy_for(name):
    return make_strategy(attention="eager" if name == "switch" else "sdpa")


def config_of(spec):
    return AutoConfig.for_model(spec.model_type, **spec.hf_config)


def saved(folder, name, auto=None, *, seed=11, **how):
    """Save random weights of a model as anybody would."""
    torch.manual_seed(seed)
    job = job_for(name)
    model = (auto or CLASSES[job.task]).from_config(config_of(job.model))
    if name == "t5-untied":
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder, **how)
    return folder


def built(name, folder, **changes):
    job = job_for(name, weights=str(folder), **changes)
    return build_program(job, strategy_for(name), CPU).model


def assert_same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key


@pytest.mark.few
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_from_pretrained(tmp_path, name, precision):
    saved(tmp_path, name)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    theirs = CLASSES[job_for(name).task].from_pretrained(tmp_path, dtype=dtype)
    if name == "switch":  # it casts them in its first forward; we hold them so from the start
        for key, parameter in theirs.named_parameters():
            if "router" in key:
                parameter.data = parameter.data.float()
                parameter.data.copy_(load_file(tmp_path / "model.safetensors")[key])
    assert_same(built(name, tmp_path, precision=precision), theirs)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_shards_are_put_together(tmp_path, name):
    saved(tmp_path, name, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    theirs = CLASSES[job_for(name).task].from_pretrained(tmp_path)
    assert_same(built(name, tmp_path), theirs)


def test_half_a_file_is_widened(tmp_path):
    model = AutoModelForCausalLM.from_config(config_of(DECODERS["llama"])).bfloat16()
    model.save_pretrained(tmp_path)
    assert_same(built("llama", tmp_path), model.float())


def test_a_checkpoint_of_the_base_gets_a_head_from_the_seed(tmp_path, caplog):
    saved(tmp_path, "bert", AutoModelForMaskedLM)
    one, same = (built("bert", tmp_path) for _ in range(2))
    other = built("bert", tmp_path, seed=4)
    stored = load_file(tmp_path / "model.safetensors")
    encoder = {k: v for k, v in stored.items() if k.startswith("bert.")}
    assert len(encoder) > 40
    for key, value in encoder.items():
        assert torch.equal(one.state_dict()[key], value)
    assert torch.equal(one.classifier.weight, same.classifier.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    assert one.classifier.weight.std().item() == pytest.approx(0.02, rel=0.5)
    assert not one.classifier.bias.any()
    assert "classifier.weight" in caplog.text
    assert "cls.predictions" in caplog.text


def test_a_bare_base_and_a_task_model_are_told_by_the_prefix(tmp_path):
    """``model.layers`` and ``layers`` are one, whichever of the two was saved."""
    torch.manual_seed(5)
    base = AutoModel.from_config(config_of(DECODERS["llama-tied"]))
    base.save_pretrained(tmp_path)
    assert not any(k.startswith("model.") for k in load_file(tmp_path / "model.safetensors"))
    model = built("llama-tied", tmp_path)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, base.layers[1].mlp.up_proj.weight)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_experts_that_are_stored_apart_are_joined(tmp_path):
    fields = {
        **make_model("llama").hf_config,
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    spec = read_config("mixtral", fields)
    model = AutoModelForCausalLM.from_config(config_of(spec))
    model.save_pretrained(tmp_path)
    assert any("experts.0." in key for key in load_file(tmp_path / "model.safetensors"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same(built("llama", tmp_path, model=spec), theirs)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "t5"])
def test_added_tokens_begin_near_the_mean_of_the_others(tmp_path, name):
    saved(tmp_path, name)
    spec = with_vocab_size(job_for(name).model, 103)
    assert with_vocab_size(spec, 50) is spec
    model = built(name, tmp_path, model=spec)
    old = CLASSES[job_for(name).task].from_pretrained(tmp_path)
    for getter in ("get_input_embeddings", "get_output_embeddings"):
        rows, before = getattr(model, getter)().weight, getattr(old, getter)().weight
        assert rows.shape[0] == 103
        assert torch.equal(rows[:97], before)
        spread = before.std(0)
        assert (rows[97:] - before.mean(0)).abs().max() < 1e-3 * spread.max()
        assert not torch.equal(rows[97], rows[98])


def test_the_noise_of_added_rows_has_a_billionth_of_the_covariance():
    """The same distribution as ``resize_token_embeddings`` draws from."""
    torch.manual_seed(0)
    num_old, num_new, width = 50, 20_000, 4
    old = torch.randn(num_old, width) @ torch.randn(width, width) * 100
    weight = torch.cat([old, torch.empty(num_new, width)])
    fill_added(weight, num_old=num_old)
    noise = weight[num_old:].double() - old.double().mean(0)
    centred = old.double() - old.double().mean(0)
    expected = 1e-9 * centred.T @ centred / num_old
    assert (noise.T @ noise / num_new - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_module_loads_its_own_names(tmp_path):
    job = make_other_job(CNN)
    model = build_program(job, make_strategy(), CPU).model.model
    changed = {key: value + 1 for key, value in model.state_dict().items()}
    save_file(changed, tmp_path / "model.safetensors")
    job = make_other_job(CNN, weights=str(tmp_path / "model.safetensors"))
    loaded = build_program(job, make_strategy(), CPU).model.model.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in changed.items())
    del changed["0.bias"]
    save_file(changed, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"lacks 0\.bias"):
        build_program(job, make_strategy(), CPU)


@pytest.mark.parametrize("base", ["same", "nf4", "int8", "llm-int8"])
def test_an_adapted_model_begins_as_its_checkpoint(tmp_path, base):
    saved(tmp_path, "llama")
    adapter = Adapter(
        rank=4,
        alpha=8,
        targets=("all-linear",),
        trained_modules=(),
        dtype="same",
        base=base,
        upcast="none",
        input_requires_grad=False,
    )
    method = "lora" if base == "same" else "qlora"
    model = built("llama", tmp_path, adapter=adapter, method=method).eval()
    ids = torch.arange(20)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        ours, plain = model(input_ids=ids).logits, theirs(input_ids=ids).logits
    assert (ours - plain).abs().max() < {"same": 1e-6}.get(base, 0.35) * plain.abs().max()


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"vocab_size": 60}, ("[97, 32]", "[60, 32]")),
        ({"intermediate_size": 96}, ("mlp.down_proj", "[32, 80]", "[32, 96]")),
        ({"num_hidden_layers": 4}, ("layers.3", "whole checkpoint")),
    ],
)
def test_another_models_weights_are_refused_with_both_shapes(tmp_path, changed, facts):
    saved(tmp_path, "llama")
    with pytest.raises(InputError) as raised:
        built("llama", tmp_path, model=make_model("llama", **changed))
    assert all(fact in str(raised.value) for fact in facts)
    assert "\n" not in str(raised.value)


def test_a_checkpoint_that_unties_a_tied_model_is_refused(tmp_path):
    saved(tmp_path, "llama")
    with pytest.raises(InputError, match="set tie_word_embeddings to false"):
        built("llama-tied", tmp_path)


def test_weights_of_nothing_in_common_are_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="none of the 1 tensors"):
        built("llama", tmp_path)


def test_quantised_tensors_are_refused(tmp_path):
    saved(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    stored["model.norm.weight"] = stored["model.norm.weight"].to(torch.int8)
    save_file(stored, file)
    with pytest.raises(InputError, match=r"model\.norm\.weight .* stored as I8"):
        built("llama", tmp_path)


def _pickle(folder):
    torch.save({"a": 1}, folder / "pytorch_model.bin")


def _pickle_file(folder):
    torch.save({"a": 1}, folder / "x.pt")
    return folder / "x.pt"


def _nothing(folder):
    pass


def _adapter(folder):
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")


def _cut_short(folder):
    saved(folder, "llama")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _not_safetensors(folder):
    (folder / "model.safetensors").write_bytes(b"PK" * 100)


def _lost_shard(folder):
    saved(folder, "llama", max_shard_size="20KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def _index(content):
    def make(folder):
        (folder / "model.safetensors.index.json").write_text(content)

    return make


def _gone(folder):
    return folder / "gone" / "deeper"


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (_pickle, ("pytorch_model.bin is a pickle", "save_pretrained")),
        (_pickle_file, ("x.pt is a pickle",)),
        (_nothing, ("holds no safetensors",)),
        (_adapter, ("holds adapters", "base")),
        (_cut_short, ("is not safetensors, or cut short",)),
        (_not_safetensors, ("is not safetensors, or cut short",)),
        (_lost_shard, ("lacks model-00002",)),
        (_index("{"), ("not an index",)),
        (_index("[]"), ("not an index",)),
        (_index('{"weight_map": {"a": "../../secret"}}'), ("outside of its folder",)),
        (_index('{"weight_map": {"a": 3}}'), ("outside of its folder",)),
        (_gone, ("no weights at",)),
    ],
)
def test_bad_weights_are_one_sentence(tmp_path, make, facts):
    source = make(tmp_path) or tmp_path
    with pytest.raises(InputError) as raised:
        built("llama", source)
    assert all(fact in str(raised.value) for fact in facts)
    assert "\n" not in str(raised.value)


def test_a_hub_id_that_is_nowhere_is_one_sentence(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as raised:
        built("llama", "nobody/nothing")
    assert "HF_HUB_OFFLINE=0" in str(raised.value)


def test_large_tensors_are_read_in_pieces(tmp_path, monkeypatch):
    saved(tmp_path, "llama")
    monkeypatch.setattr(weight_files, "PIECE_BYTES", 1000)
    with weight_files.opened(tmp_path / "model.safetensors") as tensors:
        rows = [p for p, _ in weight_files.pieces(tensors.get_slice("lm_head.weight"))]
    assert len(rows) > 30
    assert_same(built("llama", tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_piece_is_read_alone(tmp_path, monkeypatch, dtype):
    """By safetensors each piece took the whole tensor from the file, which took hours of 8B."""
    monkeypatch.setattr(weight_files, "PIECE_BYTES", 1000)
    whole, num_read = torch.randn(300, 12).to(dtype), []
    save_file({"before": torch.ones(5), "x": whole}, tmp_path / "some.safetensors")
    with weight_files.opened(tmp_path / "some.safetensors") as tensors:
        stored, raw = tensors.get_slice("x"), tensors._raw
        read = SimpleNamespace(
            seek=raw.seek, readinto=lambda room: num_read.append(room.nbytes) or raw.readinto(room)
        )
        stored._raw = read
        found = torch.cat([values.clone() for _, values in weight_files.pieces(stored)])
        assert torch.equal(found, whole)
        assert sum(num_read) == whole.nbytes
        assert len(num_read) == 30
        region = [slice(100, 200), slice(3, 7)]
        found = torch.cat([values.clone() for _, values in weight_files.pieces(stored, region)])
        assert torch.equal(found, whole[100:200, 3:7])


def test_a_report_says_what_became_of_every_name(tmp_path):
    saved(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file({**stored, "extra": torch.zeros(1)}, file)
    spec = with_vocab_size(DECODERS["llama"], 99)
    model = build_program(job_for("llama", model=spec), make_strategy(), CPU).model
    report = load(open_checkpoint(model, str(tmp_path)))
    assert report.missing == ()
    assert report.unexpected == ("extra",)
    assert report.added_rows == {"model.embed_tokens.weight": 2, "lm_head.weight": 2}


def test_other_classes_are_other_heads(tmp_path):
    saved(tmp_path, "bert", AutoModelForMaskedLM)
    spec = with_num_labels(make_other_model("bert"), 7)
    assert built("bert", tmp_path, model=spec).classifier.weight.shape == (7, 32)
    assert len(CONFIGS["bert"]["id2label"]) == 3


MEASURE = """
import json, sys, torch
sys.path[:0] = [{tests!r}]
from brimful.build.assemble import build_program
from brimful.models.config import load_model
from brimful.train.memory import peak_bytes, reset_peak, used_bytes
from samples import make_job, make_strategy
cpu = torch.device("cpu")
small = make_job(seq_len=8)
build_program(small, make_strategy(), cpu)
spec = load_model({folder!r})
job = make_job(model=spec, weights={folder!r}, precision={precision!r}, seq_len=8)
reset_peak(cpu)
before = used_bytes(cpu)
model = build_program(job, make_strategy(), cpu).model
sizes = [p.numel() * p.element_size() for p in model.parameters()]
print(json.dumps([peak_bytes(cpu) - before, sum(sizes)]))
"""
PIECE, SLACK = 2**26, 24 * 2**20


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="forgets a process's peak on Linux only")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_loading_holds_the_model_once_and_one_piece_beside_it(tmp_path, precision):
    """Resident memory, of a model of some 400 MB in fp32, stored in fp32."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=16_000,
    )
    with torch.device("meta"):  # its numbers take as much whatever they are
        model = AutoModelForCausalLM.from_config(config)
    model.to_empty(device="cpu").save_pretrained(tmp_path)
    code = MEASURE.format(
        tests=str(Path(__file__).parents[1]), folder=str(tmp_path), precision=precision
    )
    run = processes.run(["-c", code])
    peak, model = json.loads(run.stdout.strip().splitlines()[-1])
    assert model > (380 if precision == "fp32" else 190) * 10**6
    assert model < peak < model + PIECE + SLACK
