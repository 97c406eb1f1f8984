"""Copies for mixed types: what the profiler sees of a real call is what the rule says."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from brimful.pretend.cpu_promotion import is_promoting, promotion
from brimful.pretend.workspace_call import Call

pytestmark = pytest.mark.torch
BF16, FP32 = torch.ones(1000, dtype=torch.bfloat16), torch.ones(1000)
INT8, MASK = torch.ones(1000, dtype=torch.int8), torch.ones(1000, dtype=torch.bool)
ROW, NUMBER = torch.ones(10, 100, dtype=torch.bfloat16), torch.ones(())
aten = torch.ops.aten
CALLS = [
    (aten.add.Tensor, (BF16, FP32)),
    (aten.add_.Tensor, (FP32.clone(), BF16)),
    (aten.add_.Tensor, (BF16.clone(), FP32)),
    (aten.mul.Tensor, (INT8, FP32)),
    (aten.mul.Tensor, (FP32, MASK)),
    (aten.mul.Tensor, (ROW, torch.ones(100))),
    (aten.mul.Tensor, (FP32, FP32)),
    (aten.lt.Tensor, (BF16, FP32)),
    (aten.where.self, (MASK, BF16, FP32)),
    (aten.addcmul.default, (FP32, BF16, BF16)),
    (aten.sqrt.default, (INT8,)),
    (aten.maximum.default, (BF16, FP32)),
]


def taken(func, args):
    """What a real call takes at most, and what its result is of that."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = func(*args)
    events, stack = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
        stack.extend(event.children)
    level = most = 0
    for _, num_bytes in sorted(events, key=lambda event: event[0]):
        level += num_bytes
        most = max(most, level)
    held = 0 if func._schema.is_mutable else out.numel() * out.element_size()
    return most - held, out


@pytest.mark.parametrize(("func", "args"), CALLS, ids=lambda x: getattr(x, "__name__", ""))
def test_copies_are_those_of_a_real_call(func, args):
    real, out = taken(func, args)
    assert is_promoting(func)
    said = sum(w.num_bytes for w in promotion(Call(func, args, {}, out, (9, 0))))
    assert said == real


def test_numbers_cost_nothing_and_casts_are_what_they_are_for():
    out = aten.mul.Tensor(BF16, NUMBER)
    assert promotion(Call(aten.mul.Tensor, (BF16, NUMBER), {}, out, (9, 0))) == ()
    assert not is_promoting(aten._to_copy.default)
    assert not is_promoting(aten.mm.default)
