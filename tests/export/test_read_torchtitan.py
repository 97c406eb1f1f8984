"""torchtitan's TOML read back into flags."""

import pytest

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.read_source import model_of, program_of, read_source
from brimful.models.config import load_model

JOB = """
[job]
description = "a job"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
[parallelism]
tensor_parallel_degree = 2
"""


def read(tmp_path, text, num_devices=8):
    path = tmp_path / "job.toml"
    path.write_text(text)
    found = read_source(path, num_devices=num_devices, num_layers=32)
    return {each.flag: each.value for each in found.taken}, found


def test_batches_degrees_and_types_are_taken_and_the_rest_is_said(tmp_path):
    taken, found = read(tmp_path, JOB + '[activation_checkpoint]\nmode = "full"\n')
    assert taken.items() >= {
        "micro_batch": 2, "global_batch": 8, "seq_len": 8192, "steps": 1000, "zero": 3, "tp": 2,
        "dp_replicate": 1, "pp": 1, "precision": "bf16-mixed", "offload": "none",
        "loss_chunks": 1, "activation_checkpointing": ["full"], "warmup_steps": 200,
        "allocator": "expandable_segments:True",
    }.items()  # fmt: skip
    assert found.unread == ('job.description="a job"',)
    assert model_of(tmp_path / "job.toml") == "llama-3.1-8b"
    assert program_of(tmp_path / "job.toml") == "torchtitan"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[training]\nglobal_batch_size = 32\n", {"micro_batch": 8, "global_batch": 32}),
        ("[training]\ndtype = 'bfloat16'\n", {"precision": "bf16"}),
        ("[training]\nenable_cpu_offload = true\n", {"offload": "optimizer"}),
        ("[model]\nconverters = ['float8']\n", {"precision": "fp8"}),
        ("[model]\nconverters = ['quantize.linear.float8']\n", {"precision": "fp8"}),
        ("[compile]\nenable = true\n", {"compile": "blocks+loss"}),
        ('[compile]\nenable = true\ncomponents = ["loss"]\n', {"compile": "loss"}),
        (
            "[parallelism]\nfsdp_reshard_after_forward = 'never'\n",
            {"zero": 2, "dp_replicate": 1},
        ),
        (
            "[parallelism]\ndata_parallel_replicate_degree = 4\n",
            {"zero": 0, "dp_replicate": 4},
        ),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'GPipe'\n",
            {"pp": 2, "pp_schedule": "gpipe", "zero": 2, "micro_batch": 1, "global_batch": 16},
        ),
        (
            "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = '2'\n",
            {"activation_checkpointing": ["full:16"]},
        ),
        (
            "[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = 'op'\n",
            {"activation_checkpointing": ["alternate"]},
        ),
        ("[lr_scheduler]\ndecay_type = 'cosine'\n", {"schedule": "cosine"}),
        ("[optimizer]\nlr = 1e-4\nearly_step_in_backward = true\n",
         {"learning_rate": 1e-4, "optimizer_in_backward": True}),
    ],
)  # fmt: skip
def test_each_key_is_the_flag_that_says_the_same(tmp_path, more, expected):
    both = ("[training]\n", "[parallelism]\n")
    text = more + "".join(section for section in both if section not in more)
    taken, found = read(tmp_path, text, num_devices=4)
    assert taken.items() >= expected.items()
    assert found.unread == ()


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("llama3", "8B", "llama-3.1-8b"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("deepseek_v3", "236B", "deepseek-v2"),
        ("deepseek_v3", "671B", "deepseek-v3"),
        ("llama4", "17bx16e", "llama-4-scout"),
        ("llama4", "17bx128e", "llama-4-maverick"),
    ],
)
def test_a_flavor_is_a_model_that_is_known(tmp_path, name, flavor, model):
    (tmp_path / "job.toml").write_text(JOB.replace("llama3", name).replace("8B", flavor))
    assert model_of(tmp_path / "job.toml") == model
    assert load_model(model).name == model


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("[training", FileFormatError, "is no TOML"),
        ("[tool.ruff]\n", FileFormatError, "is TOML, and none of torchtitan's"),
        (JOB + "[optimizer]\nname = 'Muon'\n", UnsupportedError, "optimizer.name=Muon"),
        (JOB + "context_parallel_degree = 3\n", InputError, "context 3 are 6 devices"),
        (JOB + "data_parallel_shard_degree = 3\n", InputError, "are 6 devices"),
        (JOB.replace("= 2\nseq", "= 0\nseq"), InputError, "give 1 or more"),
        (JOB.replace("8192", "'long'"), FileFormatError, "torchtitan wants a whole number"),
    ],
)
def test_what_is_no_such_job_is_refused(tmp_path, text, error, said):
    with pytest.raises(error, match=said):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("train.py", "a program of Python's"), ("run.sh", "a script"), ("a.ipynb", "a notebook")],
)
def test_a_file_that_is_nobodys_settings_is_refused_by_its_kind(tmp_path, name, kind):
    (tmp_path / name).write_text("import torch")
    with pytest.raises(FileFormatError, match=kind) as caught:
        program_of(tmp_path / name)
    assert "no JSON" not in str(caught.value)


def test_a_row_that_is_cut_among_devices_is_as_many_rows(tmp_path):
    taken, found = read(tmp_path, JOB + "context_parallel_degree = 2\n")
    assert taken.items() >= {
        "seq_len": 4096, "micro_batch": 2, "global_batch": 8, "dp_replicate": 1, "tp": 2,
    }.items()  # fmt: skip
    assert any("4,096 of 8,192 tokens of a row" in each for each in found.stand_ins)
    text = JOB.replace("seq_len", "global_batch_size = 8\nseq_len")
    taken, _ = read(tmp_path, text + "context_parallel_degree = 2\n")
    assert taken["global_batch"] == 16
    with pytest.raises(InputError, match="does not divide"):
        read(tmp_path, JOB.replace("8192", "8191") + "context_parallel_degree = 2\n")
