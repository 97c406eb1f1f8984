"""NeMo's YAML, read as flags of pretrain_gpt.py."""

import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.programs.base import flags_of
from brimful.programs.formulas import Machines, predict_program
from brimful.programs.reading import read_command
from brimful.programs.ways_out import ways_out

MODEL = {
    "mcore_gpt": True,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "sequence_parallel": True,
    "encoder_seq_length": 2048,
    "max_position_embeddings": "${.encoder_seq_length}",
    "num_layers": 8,
    "hidden_size": 1024,
    "ffn_hidden_size": "${multiply:4, ${.hidden_size}}",
    "num_attention_heads": 16,
    "num_query_groups": 4,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "layernorm1p",
    "activation": "squared-relu",
    "position_embedding_type": "rope",
    "rotary_percentage": 0.5,
    "bias": False,
    "share_embeddings_and_output_weights": False,
    "make_vocab_size_divisible_by": 128,
    "gradient_accumulation_fusion": True,
    "overlap_p2p_comm": True,
    "megatron_amp_O2": True,
    "transformer_engine": True,
    "activations_checkpoint_granularity": None,
    "activations_checkpoint_method": "block",
    "tokenizer": {"library": "megatron", "type": "GPT2BPETokenizer"},
    "optim": {"name": "mcore_distributed_optim", "overlap_grad_sync": True},
    "data": {"seq_length": "${model.encoder_seq_length}"},
}
TRAINER = {"devices": 8, "num_nodes": 2, "precision": "bf16", "max_steps": 1000}
SAME = (
    "pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size 2 --sequence-parallel --seq-length 2048 --num-layers 8 "
    "--max-position-embeddings 2048 --hidden-size 1024 --ffn-hidden-size 4096 "
    "--num-attention-heads 16 --group-query-attention --num-query-groups 4 --hidden-dropout 0 "
    "--attention-dropout 0 --position-embedding-type rope --disable-bias-linear --squared-relu "
    "--untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --train-iters 1000 "
    "--overlap-grad-reduce --no-create-attention-mask-in-dataloader "
)


@pytest.fixture
def nemo(tmp_path):
    """Write a configuration with other values of the model, and return its path."""

    def write(trainer=TRAINER, **changed):
        model = MODEL | changed
        content = {"model": {k: v for k, v in model.items() if v != "-"}, "trainer": trainer}
        path = tmp_path / "gpt.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


def flags(path):
    return flags_of(read_command(path).arguments, "")


def predict(source, num=None, gpu="h100"):
    return predict_program(source, num, Machines(gpu))


def test_a_file_is_what_its_flags_are(nemo):
    one, other = predict(nemo()), predict(SAME, 16)
    assert one.world_size == 16
    assert one.num_steps == 1000
    assert one.ranks == other.ranks
    assert one.predicted_step_s == other.predicted_step_s


@pytest.mark.parametrize(
    ("changed", "given"),
    [
        ({"activation": "fast-swiglu"}, "--swiglu"),
        ({"normalization": "rmsnorm"}, "--normalization RMSNorm"),
        ({"transformer_engine": False}, "--transformer-impl local"),
        ({"gradient_accumulation_fusion": "-"}, "--no-gradient-accumulation-fusion"),
        ({"overlap_p2p_comm": "-"}, "--no-overlap-p2p-communication"),
        ({"virtual_pipeline_model_parallel_size": 2}, "--num-virtual-stages-per-pipeline-rank 2"),
        ({"activations_checkpoint_granularity": "full"}, "--recompute-method block"),
        ({"fp8": True, "fp8_hybrid": True}, "--fp8-format hybrid"),
        ({"optim": {"name": "distributed_fused_adam"}}, "--use-precision-aware-optimizer"),
        (
            {"optim": {"name": "mcore_distributed_optim", "grad_sync_dtype": "bf16"}},
            "--grad-reduce-in-bf16",
        ),
        ({"qkv_bias": True}, "--add-qkv-bias"),
        ({"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 0},
         "--defer-embedding-wgrad-compute"),
        ({"num_moe_experts": 8, "moe_grouped_gemm": True}, "--num-experts 8"),
        ({"encoder_seq_length": "-", "max_position_embeddings": 512,
          "data": {"seq_length": 512}}, "--seq-length 512"),
    ],
)  # fmt: skip
def test_what_keys_mean(nemo, changed, given):
    flag, _, value = given.partition(" ")
    found = flags(nemo(**changed))
    assert found.has(flag)
    assert found.text(flag) == value
    assert not flags(nemo()).has(flag) or flags(nemo()).text(flag) != value


def test_what_is_not_recomputed_whole_has_no_method(nemo):
    found = flags(nemo(activations_checkpoint_granularity="selective"))
    assert found.text("--recompute-granularity") == "selective"
    assert not found.has("--recompute-method")


def test_what_is_not_read_is_said_and_what_weighs_nothing_is_listed(nemo):
    path = nemo(some_new_kernel=True, other=None, seed=1, mcore_gpt=False)
    notes, unread = predict(path).notes, read_command(path).unread
    assert any("model.some_new_kernel" in note and "not read" in note for note in notes)
    assert {"model.seed=1", "model.rotary_percentage=0.5"} <= set(unread)
    assert not any("some_new_kernel" in each or "max_steps" in each for each in unread)
    assert any("mcore_gpt" in note for note in notes)
    assert not any("other" in note for note in notes)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"num_query_groups": 3, "tensor_model_parallel_size": 2}, InputError, "model.num_query_g"),
        ({"megatron_amp_O2": False}, UnsupportedError, "set it true"),
        ({"optim": {"name": "muon"}}, UnsupportedError, "model.optim.name muon"),
        ({"activation": "mish"}, UnsupportedError, "model.activation mish"),
        ({"normalization": "ln3"}, UnsupportedError, "model.normalization ln3"),
        ({"fp8": True, "transformer_engine": False}, InputError, "model.transformer_engine"),
        ({"fsdp": True}, UnsupportedError, r"\(model.fsdp\)"),
        ({"peft": {"peft_scheme": "lora"}}, UnsupportedError, "model.peft"),
        ({"encoder": {"num_layers": 2}}, UnsupportedError, "pretrain_t5"),
        ({"mm_cfg": {"vision_encoder": {}}}, UnsupportedError, "model.mm_cfg of gpt.yaml, a part"),
        ({"img_h": 224}, UnsupportedError, r"images \(model.img_h\)"),
        ({"num_layers": "-"}, InputError, "gpt.yaml says no model.num_layers; add it"),
        ({"num_layers": "${oc.env:LAYERS}"}, FileFormatError, "model.num_layers"),
        ({"hidden_size": [1, 2]}, FileFormatError, "model.hidden_size"),
        ({"tokenizer": {"library": "sentencepiece", "model": "x/my.model"}}, InputError,
         "add model.override_vocab_size N to gpt.yaml"),
    ],
)  # fmt: skip
def test_what_has_no_formula_is_refused_by_its_key(nemo, changed, error, said):
    with pytest.raises(error, match=said):
        predict(nemo(**changed))


def test_words_in_thousands_are_read_off_a_tokenizers_file_and_said(nemo):
    tokenizer = {"library": "sentencepiece", "model": "x/de_256k.model"}
    (rows,) = (note for note in predict(nemo(tokenizer=tokenizer)).notes if "vocabulary" in note)
    assert rows.startswith("256,000 rows of vocabulary as de_256k.model's name says")
    (rows,) = (
        note
        for note in predict(nemo(tokenizer=tokenizer, override_vocab_size=1000)).notes
        if "vocabulary" in note
    )
    assert rows.startswith("1,000 rows")


def test_numbers_of_gpus_are_the_files_unless_they_are_asked_for(nemo):
    assert predict(nemo(), 8).world_size == 8
    assert predict(nemo(trainer=TRAINER | {"devices": -1})).world_size == 8
    assert predict(nemo(trainer=TRAINER | {"devices": "${oc.env:GPUS}"})).world_size == 8


def test_ways_out_are_keys_that_are_assigned_to(nemo):
    path = nemo(micro_batch_size=16, optim={"name": "fused_adam"}, global_batch_size=64)
    found = ways_out(path, 8, Machines("rtx-3060"))
    assert found
    assert all(word.startswith("model.") and "=" in word for way in found for word in way.flags)


def test_a_plan_of_a_file_says_who_reads_it(nemo, capsys):
    assert main(["plan", "--from", nemo(), "--gpus", "2x8xh100"]) == 2
    error = capsys.readouterr().err
    assert "brimful estimate --from" in error
    assert "--for megatron" in error


def test_a_model_beside_a_trainer_is_not_nemos_by_itself(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text("model: {partial_pretrain: x}\ntrainer: {total_epochs: 1}\n")
    with pytest.raises(FileFormatError, match="MODEL_ARGS"):
        predict(str(path))


def test_the_answer_and_a_refusal_of_a_file(nemo, capsys):
    assert main(["estimate", "--from", nemo(), "--gpus", "2x8xh100"]) == 0
    out = capsys.readouterr().out
    assert "rows of vocabulary" in out
    assert "not read: model.rotary_percentage=0.5" in " ".join(out.split())
    assert main(["estimate", "--from", nemo(trainer={}), "--gpus", "2x8xh100"]) == 2
    error = capsys.readouterr().err
    assert "trainer.precision" in error
    assert len(error.strip().splitlines()) == 1
