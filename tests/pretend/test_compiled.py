"""``torch.compile`` on the pretend GPU: what Inductor's code allocates, by arithmetic.

Each case takes PyTorch's compiler a second; importing it takes three.
"""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from brimful import pretend
from brimful.errors import UnsupportedError
from brimful.hardware.cuda_chips import chips
from brimful.pretend import kernels
from brimful.pretend.cuda_mode import compiling
from brimful.pretend.tape import Tape

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # as on a card
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # Dynamo asks for it
]

SIDE = 512
MATRIX = SIDE * SIDE * 4
"""Bytes of a matrix in fp32."""
HALF = MATRIX // 2


@pytest.fixture
def run():
    with pretend.gpu("h100-80gb") as run:
        yield run


def matrix(**how):
    return torch.ones(SIDE, SIDE, device="cuda", **how)


def steps(x):
    return (x.sin() + 1).cos() * 2


def peak_over(call):
    """Return what a call takes on top of what is there, at most."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.usefixtures("run")
def test_a_scan_over_several_blocks_takes_a_place_for_each_of_them():
    numbers = torch.ones(2**17, 32, device="cuda", dtype=torch.int64)
    count = torch.compile(lambda x: x.cumsum(0))
    count(numbers)
    places = 3 * 8 * 32 * 2**17 // 256  # three numbers for each 256 rows of each column
    assert peak_over(lambda: count(numbers)) == numbers.nbytes + places


def test_what_is_fused_allocates_its_result_alone(run):
    x = matrix()
    assert peak_over(lambda: steps(x)) == 2 * MATRIX
    assert peak_over(lambda: torch.compile(steps)(x)) == MATRIX
    assert any("tuned before" in line for line in run.tape.assumptions)


def test_what_compiled_code_asks_for_is_the_line_s_that_calls_it(run):
    torch.compile(steps)(matrix())
    assert {line.partition(":")[0] for line in run.recording().lines if line} == {__file__}


def test_backward_keeps_what_the_partitioner_keeps(run):
    x = matrix(requires_grad=True)
    kept = steps(x)
    eagerly = torch.cuda.memory_allocated()
    del kept
    out = torch.compile(steps)(x)
    # Its input is enough to compute the rest again, which eager autograd keeps.
    assert torch.cuda.memory_allocated() == 2 * MATRIX < eagerly
    out.sum().backward()
    assert x.grad.shape == x.shape
    del out
    assert torch.cuda.memory_allocated() == 2 * MATRIX
    assert run.tape.num_allocations()


def test_a_graph_breaks_where_it_does(run):
    x, seen = matrix(), []

    @torch.compile
    def broken(x):
        y = steps(x)
        seen.append(str(y.device))
        torch._dynamo.graph_break()
        return steps(y)

    assert peak_over(lambda: broken(x)) == 2 * MATRIX
    assert seen == ["cuda:0"]
    whole = torch.compile(broken._torchdynamo_orig_callable, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        whole(x)
    assert run.tape.num_allocations()


def test_other_sizes_are_compiled_anew(run):
    compiled = torch.compile(steps, dynamic=False)
    for num in (SIDE, SIDE // 2):
        x = torch.ones(num, SIDE, device="cuda")
        assert peak_over(lambda x=x: compiled(x)) == x.nbytes
    assert run.tape.num_allocations()


def test_sizes_may_be_symbols(run):
    compiled = torch.compile(steps)
    for num in (SIDE, SIDE // 2, SIDE // 4):
        x = torch.ones(num, SIDE, device="cuda", requires_grad=True)
        assert peak_over(lambda x=x: compiled(x)) == x.nbytes
        compiled(x).sum().backward()
        assert x.grad.shape == x.shape
    assert run.tape.num_allocations()


def test_a_captured_program_may_say_cuda(run):
    @torch.compile(fullgraph=True)
    def says(x):
        places = torch.arange(SIDE, device="cuda") if x.is_cuda else None
        return x.to("cuda") * places, x.device

    out, where = says(matrix())
    assert out.is_cuda
    assert where == torch.device("cuda", 0)
    assert run.tape.num_allocations()


def test_autocast_outside_and_inside_lowers_products(run):
    weight, x = matrix(), matrix()

    def inside(x):
        with torch.autocast("cuda", torch.bfloat16):
            return x @ weight

    assert torch.compile(inside)(x).dtype == torch.bfloat16
    with torch.autocast("cuda", torch.bfloat16):
        # Two copies in 16 bits and the product.
        workspace = 32 * 2**20
        taken = peak_over(lambda: torch.compile(torch.matmul)(x, weight))
        assert taken in {3 * HALF, 3 * HALF + workspace}
    assert run.tape.num_allocations()


def test_blocks_of_a_kind_share_their_code(run):
    torch._dynamo.utils.counters.clear()
    blocks = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(3)).to("cuda")
    for i, block in enumerate(blocks):
        blocks[i] = torch.compile(block)
    x = matrix(requires_grad=True)
    for block in blocks:
        x = block(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    x.sum().backward()
    assert all(block.weight.grad is not None for block in blocks)
    assert run.tape.num_allocations()


def test_what_is_compiled_keeps_the_name_that_the_program_gave_it(run):
    model = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.ReLU()).to("cuda")
    model[0] = torch.compile(model[0])
    model(matrix(requires_grad=True)).sum().backward()
    owners = {one.whole.module for one in run.report().owners}
    assert "*" in owners
    assert not any("_orig_mod" in owner for owner in owners)


def test_modules_and_updates_compile_in_place_and_keep_their_names(run):
    model = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.ReLU()).to("cuda")
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters())
    update = torch.compile(optimizer.step)
    for _ in range(2):
        model(matrix()).sum().backward()
        update()
        optimizer.zero_grad()
    items = {item.name: item.num_bytes for item in run.report().items}
    assert items["parameters"] == MATRIX
    # Two moments and a count of steps, which the compiler puts on the device.
    assert 2 * MATRIX <= items["optimizer state"] <= 2 * MATRIX + 512
    assert {phase.phase for phase in run.report().phases} >= {
        "step 2+ forward",
        "step 2+ optimizer",
    }


def test_kernels_of_a_cpu_are_fused_as_there():
    with pretend.gpu("h100-80gb", imitate="cpu") as run:
        x = matrix()
        assert peak_over(lambda: torch.compile(steps)(x)) == MATRIX
    assert run.peak_allocated_bytes == 2 * MATRIX


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"mode": "reduce-overhead"}, "CUDA graphs keep memory pools"),
        ({"options": {"triton.cudagraphs": True}}, "CUDA graphs keep memory pools"),
        ({"backend": "tensorrt"}, "with the backend tensorrt is not simulated"),
        ({"backend": lambda graph, _: graph}, "with the backend <lambda> is not simulated"),
    ],
)
def test_what_is_not_simulated_is_refused_and_never_runs_eagerly(run, how, says):
    with pytest.raises(UnsupportedError, match=says) as why:
        torch.compile(nn.Linear(2, 2), **how)
    assert "of Linear with" in str(why.value)
    assert "TORCH_COMPILE_DISABLE=1" in str(why.value)
    with pytest.raises(UnsupportedError, match=says):
        nn.Linear(2, 2).compile(**how)
    assert matrix().is_cuda
    assert run.tape.num_allocations()


def test_a_product_whose_kernel_is_decided_by_timing_is_refused(run):
    tuned = torch.compile(nn.Linear(SIDE, SIDE, device="cuda"), mode="max-autotune-no-cudagraphs")
    with pytest.raises(UnsupportedError, match="decided by timing"):
        tuned(matrix())
    assert run.tape.num_allocations()


TOKENS, WIDTH, HEADS = 256, 64, 4
HEAD_BYTES = HEADS * TOKENS * WIDTH * 2
"""Of a tensor in bf16 with every head of every token."""
TUNED = {"max_autotune": True, "wrap_inductor_compiled_regions": True}


def attended(wrapped=lambda attend, *x: attend(*x)):
    """Run FlexAttention with choices among kernels, and return what was live at each end."""
    attend = torch.compile(flex_attention, options=TUNED)
    mask = torch.compile(create_block_mask)(
        lambda _b, _h, q, k: q >= k, 1, None, TOKENS, TOKENS, device="cuda"
    )
    made = [
        torch.ones(1, HEADS, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    before = torch.cuda.memory_allocated()
    out = wrapped(lambda *x: attend(*x, block_mask=mask), *made)
    after = torch.cuda.memory_allocated()
    out.sum().backward()
    assert all(x.grad.is_cuda for x in made)
    return before, after


def test_compiled_flex_attention_keeps_its_result_and_a_sum_for_each_token(run):
    before, after = attended()
    sums = HEADS * TOKENS * 4  # log-sum-exps in fp32
    assert after - before == HEAD_BYTES + sums
    assert any("tuned before" in words for words in run.report().assumptions)


def test_a_selective_checkpoint_keeps_compiled_code_as_one_operation(run):
    del run
    region = torch._higher_order_ops.inductor_compiled_code

    def policy(_context, func, *_args, **_kwargs):
        is_kept = func is region
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    def kept(attend, *x):
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(attend, *x, use_reentrant=False, context_fn=contexts)

    before, after = attended(kept)
    assert after - before >= HEAD_BYTES  # what the region returned


class Doubled(torch.autograd.Function):
    """Twice a tensor, by a function whose gradient is written out."""

    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 2


def test_functions_of_autograd_run_in_selective_checkpoints(run):
    def policy(_context, _func, *_args, **_kwargs):
        return CheckpointPolicy.PREFER_RECOMPUTE

    x = matrix(requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    out = checkpoint(Doubled.apply, x, use_reentrant=False, context_fn=contexts)
    out.sum().backward()
    assert x.grad.is_cuda
    assert run.peak_allocated_bytes >= 2 * MATRIX


def test_a_loss_over_a_vocabulary_that_is_sharded_runs():
    with pretend.gpu("h100-80gb", world_size=2, rank=0):
        mesh = init_device_mesh("cuda", (2,))
        local = torch.ones(8, 64, device="cuda", requires_grad=True)
        scores = DTensor.from_local(local, mesh, [Shard(1)])
        targets = torch.zeros(8, dtype=torch.long, device="cuda")
        with loss_parallel():
            nn.functional.cross_entropy(scores, targets).backward()
        assert local.grad.is_cuda


def test_settings_of_the_compiler_itself_are_refused_too(run):
    x = matrix()
    with (
        torch._inductor.config.patch({"triton.cudagraphs": True}),
        pytest.raises(UnsupportedError, match=r"with torch._inductor.config.triton.cudagraphs is"),
    ):
        torch.compile(steps)(x)
    with (
        torch._dynamo.config.patch(compiled_autograd=True),
        pytest.raises(UnsupportedError, match="steps with compiled autograd is not simulated"),
    ):
        torch.compile(steps)(x)
    assert run.tape.num_allocations()


def test_products_of_odd_sizes_are_said_to_be_taken_as_they_are(run):
    a = torch.ones(4096, 4097, device="cuda", dtype=torch.bfloat16)
    b = torch.ones(4097, 4096, device="cuda", dtype=torch.bfloat16)
    torch.compile(torch.mm)(a, b)
    assert any("no product was padded" in line for line in run.tape.assumptions)


def test_nothing_of_it_is_left_behind():
    with pretend.gpu("h100-80gb"):
        torch.compile(steps, backend="aot_eager")(matrix())
    for name, original in (("compile", torch.compile), ("is_available", torch.cuda.is_available)):
        assert original.__module__.startswith("torch"), name
    x = torch.ones(2)
    assert torch.equal(torch.compile(steps, backend="aot_eager")(x), steps(x))
    with pretend.gpu("t4") as run:
        y = matrix()
        assert peak_over(lambda: torch.compile(steps)(y)) == MATRIX
    assert run.peak_allocated_bytes == 2 * MATRIX


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_what_is_compiled_for_a_chip_of_ours_asks_that_chip(capability):
    """Inductor divides by the number of multiprocessors where it joins two reductions."""
    with kernels.imitate("cuda", capability=capability), compiling(Tape, set()):
        found = torch.cuda.get_device_properties(0)
    assert found.multi_processor_count == chips()[capability].num_multiprocessors > 0
    assert (found.major, found.minor) == capability


def test_a_constant_of_a_graph_is_put_on_the_gpu(run):
    @torch.compile(fullgraph=True)
    def grown(x):
        # As transformers' caches begin.
        nothing = torch.tensor([], device=x.device)
        return torch.cat([nothing, x.flatten()]) * 2

    x = matrix()
    assert peak_over(lambda: grown(x)) == MATRIX
    assert run.tape.num_allocations()


def test_attention_is_chosen_for_a_batch_whose_size_is_a_symbol(run):
    """Dynamo takes a size that changed for one; a smaller last batch is what makes it so."""

    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    compiled = torch.compile(attend)
    for batch in (4, 3, 2):
        x = torch.ones(batch, 2, 32, 64, device="cuda", dtype=torch.bfloat16)
        assert compiled(x).shape == x.shape
    assert run.tape is not None


@pytest.mark.usefixtures("run")
def test_products_of_eight_bits_are_the_library_s_in_the_default_mode():
    side = 512
    scale = torch.ones((), device="cuda")
    left = torch.empty(side, side, device="cuda").to(torch.float8_e4m3fn)
    right = torch.empty(side, side, device="cuda").to(torch.float8_e4m3fn).t()

    def product(x, y):
        return torch._scaled_mm(x, y, scale, scale, out_dtype=torch.bfloat16)

    torch.compile(product)(left, right)  # the library's workspace is there
    assert peak_over(lambda: torch.compile(product)(left, right)) == 2 * side * side


@pytest.mark.usefixtures("run")
def test_counters_that_programs_read_are_there():
    x = matrix()
    stats = torch.cuda.memory_stats()
    assert stats["reserved_bytes.all.peak"] >= stats["allocated_bytes.all.peak"] >= x.nbytes
    assert stats["num_alloc_retries"] == stats["num_ooms"] == 0


@pytest.mark.usefixtures("run")
def test_what_is_known_of_values_is_copied_with_them():
    ones, mask = torch.ones(4, device="cuda"), torch.arange(4, device="cuda")
    copied, numbers = copy.deepcopy([ones, mask])
    ones.zero_()
    numbers[1] = 7
    assert bool(copied.all())
    assert (mask.tolist(), numbers.tolist()) == ([0, 1, 2, 3], [0, 7, 2, 3])
    assert torch.histc(mask, bins=2, min=0, max=4).tolist() == [2, 2]
