"""Programs spread over many devices: what each holds, and when gradients are reduced."""

import contextlib

import msgspec
import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from brimful import pretend
from brimful.build.assemble import build_skeleton, finish_program
from brimful.build.batch import Batch
from brimful.build.blocks import decoder_blocks
from brimful.build.parallel import sync_gradients
from brimful.build.parallel.mesh import REPLICATE, SHARD, build_mesh
from brimful.build.parallel.shard import units_of
from brimful.build.step import micro_step, update
from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from brimful.pretend import fake_world
from brimful.pretend.fake_world import World, pretend_world
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import data_parallel
from samples import make_adapter, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

GPU = "gpu:0"
DDP, ZERO_1 = {"zero": 0, "dp_replicate": 3}, {"zero": 1, "dp_shard": 3}
SHARDED = [{"zero": zero, "dp_shard": 3} for zero in (2, 3)]
HYBRID = {"zero": 3, "dp_shard": 3, "dp_replicate": 2}


@contextlib.contextmanager
def built(spread, *, rank=0, micro_batches=1, adapter=None, checkpointing="none", **changes):
    """Build one rank's program in a pretend world, and leave it at the end."""
    accumulate = changes.pop("accumulate", "reduce-each")
    strategy = make_strategy(
        micro_batch=2, accumulate=accumulate, activation_checkpointing=checkpointing, **spread
    )
    devices = data_parallel(strategy)
    job = make_job(global_batch=2 * micro_batches * devices, **changes)
    if adapter is not None:
        job = msgspec.structs.replace(job, method="lora", adapter=adapter)
    check_strategy(job, strategy)
    skeleton = build_skeleton(job, strategy)
    with pretend.gpu(world_size=devices, rank=rank, imitate="cpu", says_cuda=False):
        yield finish_program(job, strategy, torch.device(GPU), skeleton)


def batch_of(program):
    """Make a micro-batch on the host."""
    shape = (program.strategy.micro_batch, program.job.seq_len)
    ids = torch.zeros(shape, dtype=torch.long, device="cpu")
    return Batch(ids, ids)


def forward(program):
    return program.root(program, batch_of(program).to(program.device), 48)


@pytest.mark.parametrize("spread", [*SHARDED, HYBRID], ids=str)
def test_every_block_and_the_rest_are_sharded_by_rows(spread):
    with built(spread) as program:
        assert isinstance(program.root, FSDPModule)
        assert all(isinstance(block, FSDPModule) for block in decoder_blocks(program.model))
        for parameter in program.model.parameters():
            assert isinstance(parameter, DTensor)
            rows = -(-parameter.shape[0] // 3)
            assert parameter.to_local().shape == (rows, *parameter.shape[1:])
            mesh = parameter.device_mesh
            if spread is HYBRID:
                assert mesh.mesh_dim_names == (REPLICATE, SHARD)
                assert mesh.shape == (2, 3)
                assert parameter.placements == (Replicate(), Shard(0))
            else:
                assert mesh.mesh_dim_names == (SHARD,)
                assert parameter.placements == (Shard(0),)


@pytest.mark.parametrize("rank", range(6))
def test_the_ranks_that_share_a_copy_stand_next_to_each_other(rank):
    with pretend_world(World(size=6, rank=rank), contextlib.nullcontext):
        mesh = build_mesh(make_strategy(**HYBRID), "cpu")
        assert tuple(mesh.get_coordinate()) == divmod(rank, 3)
        assert mesh[SHARD].get_local_rank() == rank % 3


@pytest.mark.parametrize("spread", SHARDED, ids=str)
def test_zero_3_lets_go_of_a_block_after_its_forward(spread):
    with built(spread) as program:
        forward(program)
        weight = decoder_blocks(program.model)[0].mlp.up_proj.weight
        assert isinstance(weight, DTensor) == (spread["zero"] == 3)
        assert not isinstance(program.model.get_input_embeddings().weight, DTensor)


@pytest.mark.parametrize(
    ("precision", "computed"), [("bf16-mixed", torch.bfloat16), ("fp32", torch.float32)]
)
def test_whole_parameters_compute_in_the_recipes_type(precision, computed):
    with built(SHARDED[1], precision=precision) as program:
        layer, seen = decoder_blocks(program.model)[1].mlp.up_proj, []
        layer.register_forward_pre_hook(lambda m, _: seen.append((m.weight.dtype, m.weight.shape)))
        held = (layer.weight.dtype, layer.weight.shape)
        forward(program)
        assert held == (torch.float32, seen[0][1])
        assert seen == [(computed, held[1])]


@pytest.mark.few(1)
@pytest.mark.parametrize("base", ["same", "bf16"])
def test_adapters_and_a_narrower_base_are_gathered_together(base):
    adapter = make_adapter(base=base)
    with built(SHARDED[1], precision="bf16-mixed", adapter=adapter) as program:
        types = {p.requires_grad: p.dtype for p in program.model.parameters()}
        assert types == {True: torch.float32, False: getattr(torch, {"same": "float32"}.get(
            base, "bfloat16"))}  # fmt: skip
        micro_step(program, batch_of(program), num_targets=48)
        for parameter in program.model.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad


@pytest.mark.few
@pytest.mark.parametrize("spread", [DDP, ZERO_1], ids=str)
@pytest.mark.parametrize(("accumulate", "num", "views"), [
    ("reduce-each", 1, True), ("reduce-each", 2, True), ("hold", 1, True), ("hold", 2, False),
])  # fmt: skip
def test_whole_models_are_replicated(spread, accumulate, num, views):
    with built(spread, accumulate=accumulate, micro_batches=num) as program:
        assert isinstance(program.root, DistributedDataParallel)
        assert program.root.gradient_as_bucket_view == views
        assert not any(isinstance(p, DTensor) for p in program.model.parameters())


def test_zero_1_gives_every_parameter_to_one_device():
    names = []
    for rank in range(3):
        with built(ZERO_1, rank=rank) as program:
            name_of = {id(p): name for name, p in program.model.named_parameters()}
            groups = program.optimizer.optim.param_groups
            names.append([name_of[id(p)] for group in groups for p in group["params"]])
    every = [name for part in names for name in part]
    assert sorted(every) == sorted(name_of.values())
    assert len(set(every)) == len(every)
    assert all(names)


@pytest.mark.few(1)
@pytest.mark.parametrize("accumulate", ["reduce-each", "hold"])
@pytest.mark.parametrize("spread", [*SHARDED, HYBRID], ids=str)
def test_shards_of_gradients_are_there_when_they_are_reduced(spread, accumulate):
    with built(spread, accumulate=accumulate, micro_batches=3) as program:
        parameters = list(program.model.parameters())
        for number in (1, 2, 3):
            sync_gradients(program.root, program.strategy, is_last=number == 3)
            micro_step(program, batch_of(program), num_targets=144)
            reduced = accumulate == "reduce-each" or number == 3
            assert {p.grad is not None for p in parameters} == {reduced}
        assert all(p.grad.to_local().shape == p.to_local().shape for p in parameters)
        update(program, learning_rate=1e-3)
        assert {p.grad is not None for p in parameters} == {False}


@pytest.mark.few(2)
@pytest.mark.parametrize(("accumulate", "reduced"), [("reduce-each", 3), ("hold", 1)])
@pytest.mark.parametrize("spread", [DDP, ZERO_1], ids=str)
def test_buckets_are_reduced_as_often_as_accumulation_says(
    spread, accumulate, reduced, monkeypatch
):
    calls, as_it_is = [], fake_world._reduced
    monkeypatch.setattr(
        fake_world, "_reduced", lambda state, bucket: calls.append(1) or as_it_is(state, bucket)
    )
    with built(spread, accumulate=accumulate, micro_batches=3) as program:
        for number in (1, 2, 3):
            sync_gradients(program.root, program.strategy, is_last=number == 3)
            micro_step(program, batch_of(program), num_targets=144)
        assert len(calls) == reduced * len(set(calls))
        assert len(calls) % reduced == 0
        assert len(calls) // reduced == 1, "the tiny model is one bucket"


@pytest.mark.parametrize("optimizer", ["adafactor"])
def test_optimizers_are_refused_whose_kernels_really_take_no_shards(optimizer):
    job = make_job(model=make_model(vocab_size=1000), global_batch=6, optimizer=optimizer)
    strategy = make_strategy(micro_batch=2, **SHARDED[1])
    with pytest.raises(UnsupportedError, match="take no shards"):
        check_strategy(job, strategy)
    skeleton = build_skeleton(job, strategy)
    with pretend.gpu(world_size=3, imitate="cpu", says_cuda=False):
        program = finish_program(job, strategy, torch.device(GPU), skeleton)
        micro_step(program, batch_of(program), num_targets=48)
        with pytest.raises((NotImplementedError, RuntimeError), match=r"DTensor|shard|placement"):
            update(program, learning_rate=1e-3)


def test_checkpointed_blocks_are_sharded_too():
    with built(SHARDED[1], checkpointing="full") as program:
        micro_step(program, batch_of(program), num_targets=48)
        assert all(isinstance(p.grad, DTensor) for p in program.model.parameters())


ERNIE = {
    "model_type": "ernie4_5_moe", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1, "max_position_embeddings": 64, "pad_token_id": None,
}  # fmt: skip
"""Its class keeps routers in fp32, whatever the rest is in."""


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_what_a_class_keeps_in_fp32_is_a_unit_of_its_own(checkpointing):
    asked = {"model": read_config("ernie", ERNIE), "precision": "bf16"}
    with built(SHARDED[1], checkpointing=checkpointing, **asked) as program:
        units = [module for module in program.model.modules() if isinstance(module, FSDPModule)]
        wide = [each for each in units if _types(each) == {torch.float32}]
        assert len(wide) == 2
        micro_step(program, batch_of(program), num_targets=48)
        update(program, learning_rate=1e-3)
        trained = [p for p in program.model.parameters() if p.requires_grad]
        assert {p.dtype for p in trained} == {torch.float32, torch.bfloat16}
        assert all(isinstance(p, DTensor) for p in trained)


def _types(module):
    return {p.dtype for p in module.parameters() if p.requires_grad}


def test_two_types_in_one_module_are_refused_before_fsdp2_gathers_them():
    model = build_skeleton(make_job(precision="bf16"), make_strategy(micro_batch=2))
    attention = next(m for name, m in model.named_modules() if name.endswith("self_attn"))
    attention.sinks = torch.nn.Parameter(torch.empty(4, dtype=torch.float32, device="meta"))
    with pytest.raises(UnsupportedError, match=r"sinks is kept in float32 .* use precision=bf16-m"):
        units_of(model)
