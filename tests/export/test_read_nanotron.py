"""nanotron's YAML read back into flags, and the model that it describes by sizes."""

import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.leaves import without
from brimful.export.read_source import model_of, program_of, read_source
from brimful.models.config import load_model, parameter_count

SIZES = {
    "is_llama_config": True, "hidden_size": 2048, "intermediate_size": 11008,
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
    "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN = {**{key: SIZES[key] for key in SIZES if key[:3] != "is_"}, "is_qwen2_config": True}
FILE = {
    "general": {"project": "p", "run": "r", "seed": 6, "step": None},
    "model": {"dtype": "bfloat16", "model_config": SIZES, "make_vocab_size_divisible_by": 1},
    "optimizer": {
        "accumulate_grad_in_fp32": True, "clip_grad": 1.0, "weight_decay": 0.1, "zero_stage": 0,
        "learning_rate_scheduler": {
            "learning_rate": 2e-4, "lr_warmup_steps": 2000, "lr_decay_style": "linear",
            "lr_decay_starting_step": 270000,
        },
        "optimizer_factory": {
            "name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": "1e-8",
            "torch_adam_is_fused": True,
        },
    },
    "parallelism": {
        "dp": 24, "tp": 2, "pp": 1, "pp_engine": "1f1b", "tp_mode": "REDUCE_SCATTER",
        "tp_linear_async_communication": True, "recompute_layer": False,
    },
    "tokens": {
        "micro_batch_size": 4, "batch_accumulation_per_replica": 2, "sequence_length": 4096,
        "train_steps": 300000,
    },
}  # fmt: skip


def written(tmp_path, changes, name="three_b.yaml"):
    new = yaml.safe_load(yaml.safe_dump(FILE))
    for key, value in changes.items():
        *above, last = key.split(".")
        place = new
        for each in above:
            place = place.setdefault(each, {})
        place[last] = value
    path = tmp_path / name
    path.write_text(yaml.safe_dump(new))
    return path


def read(tmp_path, changes, num_devices=48):
    path = written(tmp_path, changes)
    found = read_source(path, num_devices=num_devices, num_layers=36)
    return {each.flag: each.value for each in found.taken}, found


def test_a_file_is_said_whole(tmp_path):
    taken, found = read(tmp_path, {})
    assert taken == {
        "task": "causal-lm", "method": "full", "packing": "wrapped", "tp": 2, "pp": 1, "ep": 1,
        "zero": 0, "dp_shard": 1, "dp_replicate": 24, "micro_batch": 4, "global_batch": 192,
        "seq_len": 4096, "steps": 300000, "seed": 6, "precision": "bf16-master",
        "optimizer": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
        "learning_rate": 2e-4, "clip": 1.0, "warmup_steps": 2000, "schedule": "linear",
        "activation_checkpointing": ["none"], "loss_chunks": 1, "fused_kernels": "none",
        "compile": "none", "offload": "none", "optimizer_in_backward": False,
    }  # fmt: skip
    assert found.unread == ('general.project="p"', 'general.run="r"')
    assert found.beside_bytes == 4
    assert program_of(tmp_path / "three_b.yaml") == "nanotron"


@pytest.mark.parametrize(
    ("changes", "num", "expected"),
    [
        ({"optimizer.zero_stage": 1}, 48, {"zero": 1, "dp_shard": 24, "dp_replicate": 1}),
        ({"optimizer.zero_stage": 1, "parallelism.dp": 1}, 2, {"zero": 0, "dp_replicate": 1}),
        ({"parallelism.pp": 2, "parallelism.dp": 12}, 48, {"pp": 2, "pp_schedule": "1f1b"}),
        ({"parallelism.pp": 2, "parallelism.pp_engine": None}, 96, {"pp_schedule": "gpipe"}),
        ({"parallelism.recompute_layer": True}, 48, {"activation_checkpointing": ["full"]}),
        ({"optimizer.accumulate_grad_in_fp32": False}, 48, {"precision": "bf16"}),
        ({"model.dtype": "float32"}, 48, {"precision": "fp32"}),
        ({"optimizer.clip_grad": None}, 48, {"clip": 0.0}),
        ({"optimizer.optimizer_factory": {"name": "sgd"}}, 48, {"optimizer": "sgd", "beta1": 0.0}),
        ({"model.model_config._attn_implementation": "sdpa"}, 48, {"attention": "sdpa"}),
        # a row is cut among two: half as long on each of twice as many
        ({"parallelism.context_parallel_size": 2}, 96,
         {"seq_len": 2048, "dp_replicate": 48, "global_batch": 384}),
    ],
)  # fmt: skip
def test_each_key_is_the_flag_that_says_the_same(tmp_path, changes, num, expected):
    taken, _ = read(tmp_path, changes, num)
    assert taken.items() >= expected.items()


@pytest.mark.parametrize(
    ("sizes", "kind", "total"),
    [
        (SIZES, "llama", 3_075_098_624),
        (QWEN, "llama", 3_075_098_624),
        (QWEN | {"attention_bias": True}, "qwen2", 3_075_209_216),
        (QWEN | {"moe_config": {"num_experts": 4, "moe_intermediate_size": 256}}, "mixtral", None),
        (QWEN | {"moe_config": {"enable_shared_expert": True}}, "qwen2_moe", None),
    ],
)
def test_the_model_is_the_one_that_is_described(tmp_path, sizes, kind, total):
    path = written(tmp_path, {"model.model_config": sizes})
    spec = load_model(model_of(path))
    assert (spec.name, spec.model_type, spec.num_layers) == ("three_b", kind, 36)
    if total is not None:
        assert parameter_count(spec).total == total


def test_words_are_padded_as_tensors_share_them(tmp_path):
    path = written(tmp_path, {"model.make_vocab_size_divisible_by": 100})
    assert load_model(model_of(path)).vocab_size == 128_400


def test_a_file_that_is_called_as_a_known_model_has_another_name(tmp_path):
    path = written(tmp_path, {}, name="llama-3.1-8b.yaml")
    assert model_of(path) == "nanotron-llama-3.1-8b"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"parallelism.dp": 8}, InputError, "dp 8 x tp 2 x pp 1 are 16 devices"),
        ({"parallelism.tp": None}, InputError, "parallelism.tp is not there"),
        ({"parallelism.context_parallel_size": 3, "parallelism.dp": 8}, InputError, "does not div"),
        ({"optimizer.zero_stage": 3}, InputError, "give 0 or 1"),
        ({"optimizer.optimizer_factory.name": "shiny"}, UnsupportedError, "shiny"),
        ({"model.dtype": "float64"}, UnsupportedError, "float64"),
        ({"tokens.micro_batch_size": "x"}, FileFormatError, "a whole number"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, changes, error, said):
    with pytest.raises(error, match=said):
        read(tmp_path, changes)


@pytest.mark.parametrize(
    ("sizes", "error", "said"),
    [
        ({"is_mamba_config": True, "d_model": 64}, UnsupportedError, "nanotron's mamba"),
        (SIZES | {"vocab_size": -1}, FileFormatError, "vocab_size"),
    ],
)
def test_a_model_that_is_not_read_is_refused(tmp_path, sizes, error, said):
    with pytest.raises(error, match=said):
        model_of(written(tmp_path, {"model.model_config": sizes}))


def test_whole_tokens_on_every_device_are_said_beside_the_verdict(tmp_path):
    _, found = read(tmp_path, {"parallelism.tp_mode": "ALL_REDUCE"})
    assert any("which takes less" in each for each in found.stand_ins)


def test_another_degree_of_tensors_leaves_replicas_open(tmp_path):
    _, found = read(tmp_path, {})
    flags = {each.flag for each in without(found, {"tp": 4})[0]}
    assert flags.isdisjoint({"tp", "dp_replicate", "dp_shard"})
    _, sharded = read(tmp_path, {"optimizer.zero_stage": 1})
    assert "dp_replicate" in {each.flag for each in without(sharded, {"tp": 4})[0]}


def test_an_answer_leaves_room_for_gradients_in_fp32(tmp_path, capsys):
    path = written(tmp_path, {})
    assert main(["plan", "--from", str(path), "--gpus", "48xh100", "--no-proof"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "full training of three_b at 4,096 tokens" in said
    assert "tensor parallel 2" in said
    assert "5.73 GiB of each GPU are left for gradients in fp32" in said
    alone = main(["plan", "--from", str(path), "--gpus", "16xh100", "--no-proof"])
    assert alone == 2  # of which there are too few, said with both numbers
    assert "48 devices, and the plan is for 16" in capsys.readouterr().err
