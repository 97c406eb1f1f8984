"""Losses of other makers that have no full logits, and what else of a file could turn a verdict."""

import pytest
import yaml

from brimful.export.fused_losses import MOST_CHUNKS
from brimful.export.read_source import read_source
from brimful.export.unread import could_matter
from brimful.search.space import CHUNKS

CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER = "axolotl.integrations.liger.LigerPlugin"
AXOLOTL = {"base_model": "llama-3.2-1b", "adapter": "lora", "sequence_len": 512}
FACTORY = {
    "model_name_or_path": "llama-3.2-1b", "stage": "sft", "finetuning_type": "lora", "bf16": True,
}  # fmt: skip
TRL = {"model_name_or_path": "llama-3.2-1b", "max_length": 512, "use_liger_kernel": True}
FUSED, CHUNKED, PLAIN = ("liger", None), (None, MOST_CHUNKS), (None, None)
CASES = (
    (AXOLOTL | {"plugins": [CUT]}, CHUNKED),
    (AXOLOTL | {"plugins": [CUT], "cut_cross_entropy": False}, PLAIN),
    (AXOLOTL | {"plugins": [LIGER], "liger_fused_linear_cross_entropy": True}, FUSED),
    (AXOLOTL | {"plugins": [LIGER, CUT], "liger_rms_norm": True}, FUSED),
    (AXOLOTL | {"plugins": [LIGER], "liger_rms_norm": True}, PLAIN),
    (AXOLOTL | {"plugins": [LIGER], "liger_cross_entropy": True}, PLAIN),
    (FACTORY | {"enable_liger_kernel": True}, FUSED),
    (FACTORY | {"use_unsloth": True}, CHUNKED),
    (FACTORY | {"stage": "dpo", "enable_liger_kernel": True}, PLAIN),
    (TRL, FUSED),
    (TRL | {"beta": 0.1}, CHUNKED),
    (TRL | {"liger_kernel_config": {"fused_linear_cross_entropy": False}}, PLAIN),
)


@pytest.mark.parametrize(("content", "expected"), CASES)
def test_what_has_no_full_logits_is_read_as_what_has_none_here(tmp_path, content, expected):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    found = read_source(path, num_devices=1, num_layers=16)
    taken = {each.flag: each.value for each in found.taken}
    assert (taken.get("fused_kernels"), taken.get("loss_chunks")) == expected
    if expected == CHUNKED:
        assert found.stand_ins[0].endswith("is planned as loss in 32 chunks")
    assert not any("plugins" in each or "liger" in each for each in found.unread)


def test_the_most_chunks_are_those_that_a_search_knows():
    assert max(CHUNKS) == MOST_CHUNKS


def test_what_is_not_read_and_could_matter_is_kernels_and_switches_that_are_on():
    unread = (
        'plugins=["some.Plugin"]', "lora_mlp_kernel=true", "torch_compile=false",
        'output_dir="./fused"', "lora_dropout=0.0", "activation_offloading=true",
        'compile.components=["loss"]', "dataset_offload=true", 'fsdp_state="none"',
    )  # fmt: skip
    assert could_matter(unread) == ("plugins", "lora_mlp_kernel", "activation_offloading")


def test_both_stand_beside_the_verdict(tmp_path, capsys):
    from brimful.cli.main import main

    path = tmp_path / "x.yaml"
    content = AXOLOTL | {
        "plugins": [CUT], "lora_mlp_kernel": True, "micro_batch_size": 2, "bf16": True,
        "some_fused_kernel": True,
        "gradient_accumulation_steps": 1,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content), "utf-8")
    main(["plan", "--from", str(path), "--gpus", "h100-80gb", "--no-proof"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "stands in CutCrossEntropyPlugin is planned as loss in 32 chunks"
    assert lines[3].strip().startswith("planned without lora_mlp_kernel, which takes more")
    assert "not read  some_fused_kernel: may change what fits" in lines
    assert "loss in 32 chunks" in " ".join(lines[4:8])


def test_a_model_without_ligers_kernels_here_has_its_loss_in_chunks(tmp_path, capsys):
    from brimful.cli.main import main

    path = tmp_path / "x.yaml"
    content = FACTORY | {
        "model_name_or_path": "qwen3-30b-a3b", "enable_liger_kernel": True, "cutoff_len": 512,
        "per_device_train_batch_size": 1,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content), "utf-8")
    main(["plan", "--from", str(path), "--gpus", "b300", "--no-proof", "--zero", "0"])
    found = capsys.readouterr()
    assert "stands in Liger beside qwen3-30b-a3b" in found.out
    assert "planned as loss in 32 chunks" in " ".join(found.out.split())


def test_a_degree_of_one_and_what_pins_memory_of_the_host_change_nothing():
    unread = ("experimental.context_parallel_degree=1", "offload_optimizer.pin_memory=true")
    assert could_matter(unread) == ()
    assert could_matter(["experimental.context_parallel_degree=2"])
    assert could_matter(["fused_kernels=true"])
