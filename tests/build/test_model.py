import pytest
import torch
from torch import nn

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.attention import causal_mask
from brimful.build.blocks import body_of, decoder_blocks, embedding_of
from brimful.build.gradient_clip import clip_gradients
from brimful.models.config import parameter_count, read_config
from samples import make_job, make_model, make_strategy

from .plain import plain_model

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
ARCHITECTURES = ["llama", "gpt2"]


def build(architecture="llama", *, model=None, **switches):
    job = make_job(architecture, model=model or make_model(architecture))
    return build_program(job, make_strategy(**switches), CPU)


def test_a_skeleton_has_shapes_and_no_bytes():
    skeleton = build_skeleton(make_job(), make_strategy())
    tensors = [*skeleton.parameters(), *skeleton.buffers()]
    assert {x.device.type for x in tensors} == {"meta"}
    assert sum(x.numel() for x in skeleton.parameters()) == parameter_count(make_model()).total


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_materialize_makes_every_tensor_once_and_keeps_ties(architecture, tied):
    model = build(architecture, model=make_model(architecture, tie_word_embeddings=tied)).model
    tensors = [*model.parameters(), *model.buffers()]
    assert {x.device.type for x in tensors} == {"cpu"}
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head is embedding) is tied
    distinct = {p.data_ptr(): p.numel() for p in model.parameters()}
    assert (
        sum(distinct.values())
        == parameter_count(make_model(architecture, tie_word_embeddings=tied)).total
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_initial_weights_are_those_of_the_architecture(architecture):
    """Seen on a wider model, whose samples are many enough."""
    wide = {"hidden_size": 128} if architecture == "llama" else {"n_embd": 128}
    program = build(architecture, model=make_model(architecture, **wide))
    std = program.model.config.initializer_range
    depth_scaled = (2 * program.job.model.num_layers) ** -0.5
    for name, parameter in program.model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.ndim == 1:
            assert (parameter == 1).all(), name
        else:
            scale = depth_scaled if name.endswith("c_proj.weight") else 1.0
            assert parameter.std().item() == pytest.approx(std * scale, rel=0.1), name
            assert abs(parameter.mean().item()) < 0.1 * std, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_buffers_are_those_of_a_model_built_the_usual_way(architecture):
    model = build(architecture).model
    usual = plain_model(make_job(architecture), model.state_dict())
    buffers = dict(usual.named_buffers())
    assert dict(model.named_buffers()).keys() == buffers.keys()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


@pytest.mark.parametrize(
    ("model_type", "own", "task"),
    [
        ("trocr", {"decoder_layers": 1, "decoder_ffn_dim": 48}, "causal-lm"),
        ("canine", {"num_hash_buckets": 64}, "sequence-classification"),
    ],
)
def test_a_class_that_names_no_embedding_has_its_first_table(model_type, own, task):
    sizes = {
        "hidden_size": 32, "d_model": 32, "num_hidden_layers": 1, "intermediate_size": 48,
        "num_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 97,
    }  # fmt: skip
    model = read_config("tiny", {**sizes, **own, "model_type": model_type})
    packing = "wrapped" if task == "causal-lm" else "none"
    job = make_job(model=model, task=task, packing=packing)
    skeleton = build_skeleton(job, make_strategy(attention="eager"))
    with pytest.raises(NotImplementedError):
        body_of(skeleton).get_input_embeddings()
    assert isinstance(embedding_of(body_of(skeleton)), nn.Embedding)


def test_the_seed_decides_the_weights():
    one, same, other = (
        build_program(make_job(seed=seed), make_strategy(), CPU).model.state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_dropout_is_off_whatever_the_configuration_says():
    model = make_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    rates = [m.p for m in build("gpt2", model=model).model.modules() if isinstance(m, nn.Dropout)]
    assert rates
    assert set(rates) == {0.0}


@pytest.mark.parametrize(
    ("text", "num_blocks"), [("none", 0), ("full:1", 1), ("full:2", 2), ("full", 3)]
)
def test_checkpointing_takes_the_first_blocks(text, num_blocks):
    blocks = decoder_blocks(build(activation_checkpointing=text).model)
    on = [block.gradient_checkpointing for block in blocks]
    assert on == [True] * num_blocks + [False] * (3 - num_blocks)


def test_the_mask_blocks_the_future_only():
    mask = causal_mask("eager", seq_len=4, dtype=torch.bfloat16, device=CPU)
    assert mask.shape == (1, 1, 4, 4)
    assert mask.dtype == torch.bfloat16
    minimum = torch.finfo(torch.bfloat16).min
    for query in range(4):
        for key in range(4):
            assert mask[0, 0, query, key] == (minimum if key > query else 0)
    assert causal_mask("sdpa", seq_len=4, dtype=torch.float32, device=CPU) is None


def test_decay_is_on_matrices_only():
    program = build("gpt2")
    matrices, vectors = program.optimizer.param_groups
    assert matrices["weight_decay"] == program.job.weight_decay
    assert vectors["weight_decay"] == 0
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}
    num_parameters = len(matrices["params"]) + len(vectors["params"])
    assert num_parameters == len(list(program.model.parameters()))


@pytest.mark.parametrize(("bound", "expected"), [(0.5, 0.5), (0.0, 5.0), (10.0, 5.0)])
def test_clipping_bounds_the_norm_and_reports_it_as_it_was(bound, expected):
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], bound).item() == pytest.approx(5.0)
    assert parameter.grad.norm().item() == pytest.approx(expected, rel=1e-5)
