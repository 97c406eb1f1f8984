"""What flags alone tell is refused before anything heavy is loaded, let alone run."""

import sys

import pytest

LOADED_BY = {
    "plan": "brimful.process.library_output",
    "simulate": "brimful.process.library_output",
    "train": "brimful.train.run_folder",
    "precision": "brimful.train.world",
}
"""The first that each verb imports of what imports torch, or comes just before it."""
H100, LORA = ("--gpus", "8xh100-80gb"), ("--method", "lora")
RUN = ("--data", "data.txt", "--out", "run")


@pytest.fixture
def refused(brimful, folder, monkeypatch):
    """Return what a verb says that must not come to where work begins."""

    def run(verb, *argv):
        monkeypatch.setitem(sys.modules, LOADED_BY[verb], None)  # importing it is an error
        said = brimful(verb, "tiny.json", *argv)
        assert said.code == 2, said.err
        assert not (folder / "run").exists()
        return said.err

    return run


@pytest.mark.parametrize(
    ("verb", "flags", "word"),
    [
        ("plan", ("--packing", "documents", "--attention", "flash"), "see one another"),
        ("plan", ("--offload", "everything"), "offload"),
        ("plan", ("--packing", "documents", "--tp", "2"), "tp=2"),
        ("plan", ("--precision", "fp8", "--gpus", "a100-80gb"), "8.9"),
        ("plan", ("--attention", "varlen"), "CUDA only"),
        ("plan", ("--keep-fp32", "lm_head", "--micro-batch", "1,2"), "give one value"),
        ("simulate", ("--engine", "deepspeed"), "deepspeed"),
        ("simulate", ("--rank", "7"), "use 0 to 0"),
        ("simulate", ("--routing", "worst"), "ep=1"),
        ("simulate", ("--allocator", "nosuch:1"), "nosuch"),
        ("train", (*RUN, *H100), "this machine has none"),
        ("train", (*RUN, "--attention", "cudnn"), "CUDA only"),
        ("train", (*RUN, "--engine", "deepspeed", *LORA), "method=lora"),
        ("train", (*RUN, "--packing", "documents", "--ac", "most"), "most"),
        ("precision", ("--data", "data.txt", "--gpus", "h100-80gb"), "this machine has none"),
        ("precision", ("--data", "data.txt", "--tp", "2"), "tp=2"),
        ("precision", ("--data", "data.txt", "--micro-batch", "3"), "micro_batch=3"),
    ],
)
def test_a_refusal_comes_before_work(refused, monkeypatch, verb, flags, word):
    monkeypatch.setattr("brimful.hardware.probe._torch_version", lambda: "2.13.0+cpu")
    assert word in refused(verb, "--seq-len", 32, "--global-batch", 8, *flags)
