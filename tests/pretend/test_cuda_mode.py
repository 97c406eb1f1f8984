"""Programs that say ``cuda``: everything they may ask is answered, and everything is put back."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from brimful import pretend
from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import replay
from brimful.errors import UnsupportedError

pytestmark = pytest.mark.torch

CUDA = torch.device("cuda", 0)


@pytest.fixture
def run():
    with pretend.gpu("a100-40gb", says_cuda=True) as run:
        torch.zeros(1, device="cuda")  # no run without a byte on the GPU
        yield run


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, device="cuda"),
        lambda: torch.ones(2, device="cuda:0"),
        lambda: torch.ones(2, device=torch.device("cuda")),
        lambda: torch.ones(2, device=0),
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2).cuda(0, non_blocking=True),
        lambda: torch.ones(2).to("cuda", torch.float16),
        lambda: torch.ones(2).pin_memory().to(device="cuda", non_blocking=True),
        lambda: torch.tensor([1, 2], device="cpu", pin_memory=True).cuda(non_blocking=True),
        lambda: torch.empty(2, pin_memory=True).cuda(),
        lambda: torch.ones(2).to(torch.ones(1, device="cuda")),
        lambda: torch.tensor([1, 2], device="cuda"),
        lambda: torch.as_tensor([1, 2], device="cuda"),
        lambda: torch.asarray([1, 2], device="cuda"),
        lambda: torch.ones(2, device="cuda").new_tensor([1.0]),
        lambda: torch.from_numpy(np.ones(2)).cuda(),
        lambda: torch.randn(2, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
        lambda: nn.Linear(2, 2).cuda().weight,
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).to("cuda").half().weight,
        lambda: nn.Sequential(nn.BatchNorm1d(2)).to("cuda")[0].running_mean,
        lambda: torch.nn.Parameter(torch.ones(2, device="cuda")),
        lambda: copy.deepcopy(nn.Linear(2, 2).cuda()).weight,
        lambda: nn.Transformer(8, 2, 2, 2, batch_first=True).cuda().decoder.layers[1].norm1.bias,
    ],
)  # fmt: skip
def test_what_is_put_on_cuda_says_so(run, make):
    x = make()
    assert x.device == CUDA
    assert x.device.type == "cuda"
    assert x.is_cuda
    assert x.get_device() == 0
    assert x.cpu().device.type == "cpu"
    assert run.recording().num_bytes[-1] > 0


def test_default_devices(run):
    with torch.device("cuda"):
        assert torch.ones(2).device == CUDA
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).device == torch.get_default_device() == CUDA
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert run.tape.num_allocations()


def test_a_tensor_moves_in_place(run):
    weight = nn.Parameter(torch.ones(4))
    weight.data = weight.data.to("cuda")
    assert weight.device == CUDA
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    (weight * 2).sum().backward()
    assert weight.grad.device == CUDA
    assert run.peak_allocated_bytes >= 16


@pytest.mark.usefixtures("run")
def test_a_parameter_whose_value_is_known_moves():
    """As CLIP's ``logit_scale``: the fake mode refers to it by its constant."""
    module = nn.Module()
    module.scale = nn.Parameter(torch.tensor(2.66))
    assert module.to("cuda").scale.device == CUDA


def test_a_copy_is_a_copy(run):
    model = nn.Linear(4, 4).cuda()
    model.weight.note, model.extra = ["mine"], torch.arange(3).cuda()
    other = copy.deepcopy([model, model.weight])
    assert other[0].weight is other[1]
    assert other[1].note == ["mine"]
    assert other[1].note is not model.weight.note
    model.extra += torch.randn(3, device="cuda").argmax()
    assert copy.deepcopy(model).extra.max().item() == 1, "not known any more"
    assert other[0].extra.tolist() == [0, 1, 2]
    assert isinstance(other[1], nn.Parameter)
    assert run.recording().num_bytes.sum() >= 2 * 4 * (16 + 4)


def test_the_card_answers(run):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (8, 0)
    assert "A100" in torch.cuda.get_device_name(0)
    assert torch.cuda.get_device_properties("cuda").total_memory > 39 * 2**30
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.is_bf16_supported()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    assert len(torch.cuda.get_rng_state_all()) == torch.cuda.device_count()
    assert run.card.capability == (8, 0)


def test_memory_is_that_of_the_tape(run):
    before = torch.cuda.memory_allocated()
    x = torch.empty(1024, device="cuda")
    assert torch.cuda.memory_allocated() == before + 4096
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4096
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.memory.memory_allocated() == before
    assert torch.cuda.memory_reserved() >= before
    torch.cuda.empty_cache()
    assert len(run.recording().cache_flushes) == 1


@pytest.mark.usefixtures("run")
def test_what_is_reserved_is_what_the_allocator_holds_by_then():
    """As on a GPU: a freed block stays cached, and serves what asks for less."""
    mib = 2**20
    big = torch.empty(100 * mib, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_reserved()
    del big
    assert torch.cuda.memory_reserved() == before >= 100 * mib
    assert torch.cuda.memory_allocated() < before
    kept = torch.empty(60 * mib, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == before
    free, total = torch.cuda.mem_get_info()
    assert total - free == before
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before - 99 * mib
    assert torch.cuda.max_memory_reserved() == before
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()


def test_reserved_bytes_are_those_of_a_replay_of_the_whole(run):
    layers = [torch.nn.Linear(512, 512, device="cuda") for _ in range(8)]
    x = torch.randn(4096, 512, device="cuda")
    for layer in layers:
        x = layer(x).relu()
        torch.cuda.memory_reserved()
    x.sum().backward()
    said = torch.cuda.memory_stats()
    replayed = replay(run.recording().requests(), settings=PYTORCH_DEFAULTS, capacity_bytes=None)
    assert said["reserved_bytes.all.peak"] == replayed.peak_reserved_bytes


def test_streams_events_and_ranges_are_taken(run):
    side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.cuda.nvtx.range("side"):
        x = torch.ones(2, device="cuda")
        event.record()
    torch.cuda.current_stream().wait_event(event)
    x.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    with torch.cuda.device(0):
        torch.manual_seed(0)
    assert run.recording().stream[-1] == side.stream_id


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"foreach": True}, {"foreach": False}])
def test_fp16_with_a_scaler(run, settings):
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            assert torch.is_autocast_enabled()
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") == torch.float16
            out = model(torch.ones(4, 8, device="cuda"))
            assert out.dtype == torch.float16
            loss = functional.mse_loss(out, torch.ones_like(out))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert len(optimizer.state) == 2, "found_inf was answered with 0, so the step was taken"
    assert not torch.is_autocast_enabled("cuda")
    assert run.recording().phases[-1] == "step 2 optimizer"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_backward_calls_is_a_program_too(run, use_reentrant):
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            seen.append(("forward", x.device))
            return 2 * x

        @staticmethod
        def backward(_, gradient):
            seen.append(("backward", gradient.device))
            return 2 * gradient

    def block(x):
        return Double.apply(x + torch.ones(1, device="cuda")).relu()

    x = torch.ones(4, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: seen.append(("hook", gradient.device)))
    checkpoint(block, x, use_reentrant=use_reentrant).sum().backward()
    assert [name for name, _ in seen] == ["forward", "forward", "backward", "hook"]
    assert {device for _, device in seen} == {CUDA}
    assert run.tape.num_allocations()


def test_saved_tensor_hooks_see_cuda(run):
    seen = []

    def pack(x):
        seen.append(x.device.type)
        return x.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.to("cuda")):
        y = torch.ones(4, device="cuda", requires_grad=True).exp()
    y.sum().backward()
    assert seen == ["cuda"]
    assert run.recording("cpu").live_bytes().max() > 0


def test_known_integers_keep_their_values(run):
    ids = torch.tensor([[3, 0, 5], [7, 0, 0]]).cuda()
    mask = (ids != 0).long()
    assert mask.sum().item() == 3
    assert not bool(mask.all())
    assert ids[mask.bool()].shape == (3,)
    assert ids.nonzero().shape == (3, 2)
    assert ids.tolist() == [[3, 0, 5], [7, 0, 0]]
    assert ids.cpu().numpy().sum() == 15
    scores = torch.randn(2, 3, device="cuda")
    assert scores[mask.bool()].shape == (3,)
    ids[0, 0] = scores.argmax()
    assert ids.max().item() == 1, "no longer known: the stand-in"
    assert f"{scores.mean():.2f}" == "0.00"
    assert scores.cpu().numpy().tolist() == [[0.0] * 3] * 2
    assert run.tape.num_allocations()


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of torch's own, on any device
def test_numpy_makes_an_array_of_a_tensor_on_the_host(run):
    ids = torch.tensor([[3, 0, 5], [7, 0, 0]]).cuda()
    assert np.array(ids.cpu()).tolist() == [[3, 0, 5], [7, 0, 0]]
    assert np.asarray(ids.cpu(), dtype=np.float32).dtype == np.float32
    assert run.tape.num_allocations()


def test_a_mask_of_nothing_but_ones_is_no_mask(run):
    utilities = pytest.importorskip("transformers.utils.import_utils")
    assert not utilities.is_tracing(torch.ones(2, 3, dtype=torch.long, device="cuda"))
    assert utilities.is_tracing(torch.randn(2, 3, device="cuda"))
    assert run.tape.num_allocations()


def test_a_loader_gives_every_sample_once(run):
    data = TensorDataset(torch.arange(12))
    loader = DataLoader(data, 4, shuffle=True, num_workers=2, pin_memory=True, prefetch_factor=4)
    seen = [x for (batch,) in loader for x in batch.to("cuda", non_blocking=True).tolist()]
    assert sorted(seen) == list(range(12))
    assert run.recording("cpu").num_bytes.sum() > 0


def test_nothing_is_saved(run, tmp_path):
    model = nn.Linear(2, 2).cuda()
    with pytest.warns(UserWarning, match=r"torch.save writes nothing"):
        torch.save(model.state_dict(), tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())
    assert run.tape.num_allocations()


def test_a_file_is_loaded_onto_the_gpu(tmp_path):
    torch.save({"weight": torch.ones(1024)}, tmp_path / "model.pt")
    with pretend.gpu("t4", says_cuda=True) as run:
        state = torch.load(tmp_path / "model.pt", map_location="cuda")
        assert state["weight"].device == CUDA
        moved = state["weight"] * 2
        assert moved.device == CUDA
    assert run.peak_allocated_bytes >= 4096


def test_what_is_not_served_says_so(run):
    with pytest.warns(UserWarning, match="use brimful pretend --snapshot"):
        torch.cuda.memory._dump_snapshot("here.pickle")
    assert run.tape.num_allocations()


def test_what_is_not_to_be_compiled_runs_as_it_is(run, monkeypatch):
    x = torch.ones(2, device="cuda")
    assert torch.compile(lambda x: x + 1, disable=True)(x).shape == (2,)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert torch.compile(lambda x: x + 1)(x).shape == (2,)
    assert run.tape.num_allocations()


def test_small_things_that_programs_of_others_ask_for(run):
    assert torch.cuda.device(0).idx == 0
    (generator,) = torch.cuda.default_generators
    assert generator.get_state().shape == torch.cuda.get_rng_state().shape
    generator.set_state(generator.clone_state().get_state())
    generator.graphsafe_set_state(generator.graphsafe_get_state())
    assert torch.Generator().clone_state().get_state().numel() > 16

    class ListOfBuffers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(2, device="cuda"))
            self.buffers = [1, 2]

        def forward(self, x):
            return x + self.kept

    assert ListOfBuffers()(torch.ones(2, device="cuda")).shape == (2,)
    assert "buffers" in {item.name for item in run.report().items}


@pytest.mark.usefixtures("run")
def test_a_state_that_another_process_sent_leaves_the_hosts_generator_as_it_is():
    """As Accelerate does with the generator of each data loader, by way of the GPU."""
    sent = torch.get_rng_state().cuda().cpu()
    own = torch.Generator().manual_seed(3)
    before = own.get_state()
    own.set_state(sent)
    torch.set_rng_state(sent)
    torch.random.set_rng_state(sent)
    assert torch.equal(own.get_state(), before)


def test_tensors_of_numbers_that_are_tensors(run):
    known, unknown = torch.arange(3, device="cuda").sum(), torch.randn(3, device="cuda").argmax()
    assert torch.tensor([[known, 2], [0, 1]]).tolist() == [[3, 2], [0, 1]]
    assert torch.tensor([1, known.cpu()]).tolist() == [1, 3]
    with pytest.raises(ValueError, match="expected sequence"):
        torch.tensor([[1], [2, 3]])
    made = torch.tensor([0, known, unknown], device="cuda")
    assert made.device == CUDA
    with pytest.raises(UnsupportedError, match="hangs on values"):
        made.nonzero()
    assert run.tape.num_allocations()


def test_equal_looks_at_what_is_known(run):
    loss = torch.randn(3, device="cuda", requires_grad=True).sum()
    seen = []
    loss.register_hook(lambda grad: seen.append(torch.equal(grad, torch.tensor(1.0).cuda())))
    loss.backward()
    assert seen == [True], "the gradient that backward begins with is 1"
    assert not torch.equal(torch.randn(2, device="cuda"), torch.randn(2, device="cuda"))
    assert torch.equal(torch.arange(2, device="cuda"), torch.arange(2).cuda())
    assert run.tape.num_allocations()


def test_everything_is_put_back():
    owners = (torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.autocast, torch._C,
              torch.UntypedStorage, DataLoader, torch.autograd, torch.accelerator)  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    with pretend.gpu("t4", says_cuda=True):
        torch.zeros(1, device="cuda")
        assert torch.cuda.is_available()
    after = [dict(vars(owner)) for owner in owners]
    changed = [
        (owner, name)
        for owner, old, new in zip(owners, before, after, strict=True)
        for name in old.keys() | new.keys()
        if old.get(name) is not new.get(name) and not name.startswith("__")
    ]
    assert not changed
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")


@pytest.mark.usefixtures("run")
def test_parameters_keep_what_a_program_wrote_on_them():
    layer = nn.Linear(2, 2)
    layer.weight.belongs_to = "experts"
    layer.cuda().half()
    assert layer.weight.belongs_to == "experts"
    assert layer.weight.dtype == torch.float16
