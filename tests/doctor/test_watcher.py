"""The watcher on plain PyTorch loops: what it sees is what is there, and it leaves no trace."""

import math

import pytest

pytestmark = pytest.mark.torch

WIDTH, BATCH = 16, 8


def make_model():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def train(model, watcher, optimizer, *, num_steps=4, **ways):
    import torch

    factor, loss_scale = ways.get("factor", 1.0), ways.get("loss_scale", 1.0)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, num_steps + 1):
        with watcher.step(step, loss_scale=loss_scale):
            for _ in range(2):
                x = torch.randn(BATCH, WIDTH, generator=generator) * factor
                (model(x).square().mean() * loss_scale).backward()
            optimizer.step()
            optimizer.zero_grad()
    return watcher.watched()


def watched(*, every=1, **changes):
    import torch

    from brimful.doctor.watcher import Watcher

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return train(model, Watcher(model, optimizer, every=every), optimizer, **changes)


def num_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) + sum(
        len(p._backward_hooks or {}) for p in model.parameters()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("num", [0, 1, 1000, 200_000])
def test_counting_by_numpy_and_by_torch_is_the_same(dtype, num):
    import torch

    from brimful.doctor.measuring import count_magnitudes, count_on_device

    generator = torch.Generator().manual_seed(num)
    x = torch.randn(num, generator=generator) * torch.exp2(
        torch.randint(-40, 17, (num,), generator=generator).float()
    )
    x = x.to(getattr(torch, dtype))
    one, other = count_magnitudes(x), count_on_device(x)
    assert torch.equal(one.counts, other.counts)
    assert int(one.largest_bits) == int(other.largest_bits)
    assert int(one.counts.sum()) == num


@pytest.mark.parametrize("name", ["fp16", "e5m2", "e4m3"])
def test_what_is_said_to_vanish_is_what_torch_rounds_to_zero(name):
    import torch

    from brimful.doctor.formats import FORMATS
    from brimful.doctor.measuring import count_magnitudes
    from brimful.doctor.spectrum import from_counts

    form = FORMATS[name]
    edge = 2.0**form.vanish_exponent
    near = torch.tensor([edge, -edge, edge * 1.0001, edge * 0.9999, 2 * edge, 3 * edge, 0.0, 1.0])
    many = torch.randn(50_000) * torch.exp2(torch.randint(-40, 10, (50_000,)).float())
    for x in (near, many):
        spectrum = from_counts(count_magnitudes(x).counts.tolist())
        rounded = x.to(getattr(torch, form.torch_name)).float()
        assert spectrum.vanishing(form) == int(((rounded == 0) & (x != 0)).sum())
        kept = (rounded != 0) & (x.abs() < 2.0**form.least_exponent)
        assert spectrum.subnormal(form) == int(kept.sum())


def test_every_module_parameter_and_kind_is_seen_with_all_its_numbers():
    seen = watched(num_steps=1)
    nums = {(row.name, row.kind): row.spectrum.num for row in seen.rows}
    assert nums["batch", "input"] == 2 * BATCH * WIDTH
    assert nums["0", "activation"] == nums["0", "output-gradient"] == 2 * BATCH * 32
    assert nums["0.weight", "weight"] == 32 * WIDTH
    assert nums["0.weight", "gradient"] == 2 * 32 * WIDTH  # of each micro-batch
    assert nums["2", "input"] == 2 * BATCH * 32  # a norm's own
    assert {name for name, kind in nums if kind == "gradient"} == {
        f"{layer}.{what}" for layer in (0, 2, 3) for what in ("weight", "bias")
    }
    assert {lost.name for lost in seen.lost} == {
        f"{layer}.{what}" for layer in (0, 2, 3) for what in ("weight", "bias")
    }
    assert seen.bads == ()


def test_only_chosen_steps_are_watched_and_nothing_stays_installed():
    import torch

    from brimful.doctor.watcher import Watcher

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = Watcher(model, optimizer, every=3)
    before = num_hooks(model)
    assert train(model, watcher, optimizer, num_steps=8).steps == (1, 4, 7)
    assert num_hooks(model) == before == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    watcher.begin(2)
    assert not watcher.is_watching
    assert num_hooks(model) == 0


def test_watching_changes_no_weight():
    import torch

    from brimful.doctor.watcher import Watcher

    weights = []
    for every in (1, 1000):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, Watcher(model, optimizer, every=every), optimizer)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_few_steps_are_kept_however_many_are_watched(monkeypatch):
    from brimful.doctor import watcher

    monkeypatch.setattr(watcher, "KEPT_STEPS", 4)
    seen = watched(num_steps=20)
    assert len(seen.steps) <= 4
    assert (seen.steps[0], seen.steps[-1]) == (1, 20)
    assert {row.step for row in seen.rows} == set(seen.steps) >= {x.step for x in seen.lost}


def test_no_tensor_outlives_its_step():
    import gc
    import weakref

    import torch

    from brimful.doctor.watcher import Watcher

    model = make_model()
    watcher = Watcher(model)
    outputs = []
    model[1].register_forward_hook(lambda _m, _args, out: outputs.append(weakref.ref(out)))
    with watcher.step(1):
        model(torch.randn(BATCH, WIDTH)).sum().backward()
        gc.collect()
        assert outputs[0]() is None


def test_checkpointed_blocks_are_counted_once():
    import torch
    from torch.utils.checkpoint import checkpoint

    from brimful.doctor.watcher import Watcher

    counts = []
    for reenters in (None, False, True):
        model = make_model()
        watcher = Watcher(model)
        with watcher.step(1):
            x = torch.ones(BATCH, WIDTH, requires_grad=True)
            out = model(x) if reenters is None else None
            if reenters is not None:
                out = checkpoint(model, x, use_reentrant=reenters)
            out.sum().backward()
        rows = watcher.watched().rows
        counts.append({(r.name, r.kind): r.spectrum for r in rows if r.kind != "input"})
    assert counts[0] == counts[1] == counts[2]


def test_the_first_bad_number_is_named_with_its_micro_batch():
    import torch

    from brimful.doctor.watcher import Watcher

    model = make_model()
    watcher = Watcher(model, with_ranges=True)
    calls = []

    def spoil(_module, _args, out):
        calls.append(1)
        return out * math.inf if len(calls) == 2 else out

    model[1].register_forward_hook(spoil)
    with watcher.step(5):
        for _ in range(3):
            model(torch.randn(BATCH, WIDTH)).sum().backward()
    (bad,) = watcher.watched().bads
    assert (bad.step, bad.micro_batch, bad.name, bad.kind) == (5, 1, "1", "activation")
    assert bad.input_low < 0 < bad.input_high


def test_what_a_module_makes_between_its_parts_is_its_own():
    import torch
    from torch import nn

    from brimful.doctor.watcher import Watcher

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.other(torch.log(self.one(x) * 0 - 1))

    model = nn.Sequential(nn.Linear(4, 4), Block())
    watcher = Watcher(model)
    with watcher.step(1):
        model(torch.ones(2, 4))
    (bad,) = watcher.watched().bads
    assert (bad.name, bad.kind) == ("1", "activation")


def test_lost_updates_are_those_that_leave_a_weight_as_it_was():
    import torch
    from torch import nn

    from brimful.doctor.watcher import Watcher

    layer = nn.Linear(4, 4, bias=False).bfloat16()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.weight[0] = 2.0**-7
    optimizer = torch.optim.SGD(layer.parameters(), lr=2.0**-10)
    watcher = Watcher(layer, optimizer)
    with watcher.step(1):
        layer(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    (lost,) = watcher.watched().lost
    assert (lost.num, lost.num_lost, lost.num_moved) == (16, 12, 4)
    assert lost.share == 0.75


def test_a_rate_of_zero_loses_nothing():
    import torch

    from brimful.doctor.watcher import Watcher

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    assert train(model, Watcher(model, optimizer), optimizer, num_steps=1).lost == ()


def test_of_a_large_parameter_numbers_at_even_distances_are_looked_at(monkeypatch):
    from brimful.doctor import updates

    monkeypatch.setattr(updates, "SAMPLE", 100)
    seen = watched(num_steps=1)
    nums = {lost.name: lost.num for lost in seen.lost}
    assert nums["0.weight"] <= 100 < 32 * WIDTH
    assert nums["0.bias"] == 32


def test_findings_of_a_plain_loop():
    from brimful.doctor.findings import find_faults
    from brimful.doctor.seen import seen_in_loop

    assert find_faults(seen_in_loop(watched())) == ()
    (first, *_) = find_faults(seen_in_loop(watched(factor=math.inf, num_steps=2)))
    assert (first.fault, first.name, first.kind) == ("not-finite", "batch", "input")
    scaled = seen_in_loop(watched(loss_scale=2.0**127, factor=1e3, num_steps=1))
    assert scaled.ranks[0].bads
    assert scaled.first_bad is None  # a smaller scale would have avoided it
