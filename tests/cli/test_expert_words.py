"""What is said of a mixture's experts beside a plan."""

from brimful.cli.expert_words import expert_facts
from brimful.models.config import load_model
from samples import make_adapter, make_job


def test_stacks_of_experts_get_no_adapters_whatever_the_targets_are():
    """Nothing said so, and it is 315M parameters: 48 x 128 x 8 x (2048 + 1536 + 768 + 2048)."""
    told = {"model": load_model("qwen3-30b-a3b"), "method": "lora"}
    (fact,) = expert_facts(make_job(**told, adapter=make_adapter(rank=8)))
    assert fact.label == "experts"
    assert "get no adapters" in fact.text
    assert "(315M parameters more if each had some)" in fact.text
    for adapter in (make_adapter(targets=("q_proj",)), make_adapter(base="nf4")):
        (fact,) = expert_facts(make_job(**told, adapter=adapter))
        assert "get no adapters" in fact.text
