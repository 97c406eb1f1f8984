"""Autocast on the pretend GPU gives the types that real autocast gives."""

import contextlib

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - the usual name

from brimful.pretend import autocast, device, kernels
from brimful.pretend.tape import Tape
from brimful.values.results import AUTOCAST_CACHE

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]

LOW, HIGH = torch.bfloat16, torch.float32
OPERATIONS = {
    "linear": F.linear,
    "mm": lambda x, w: x @ w,
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "matmul": lambda x, w: torch.matmul(x[None, None], w),
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "baddbmm": lambda x, w: torch.baddbmm(x[None], x[None], w[None]),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "mv": lambda x, w: torch.mv(x, w[0]),
    "conv1d": lambda x, w: F.conv1d(x[None], w[:, :, None]),
    "conv2d": lambda x, w: F.conv2d(x[None, :, :, None], w[:, :, None, None]),
    "prelu": lambda x, w: F.prelu(x, w[0]),
    "attention": lambda x, w: F.scaled_dot_product_attention(
        x[None, None], w[None, None], x[None, None], is_causal=True
    ),
    "softmax": lambda x, w: (x + w).softmax(-1),
    "log_softmax": lambda x, w: (x + w).log_softmax(-1),
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w[0]),
    "rms_norm": lambda x, w: F.rms_norm(x, (8,), w[0]),
    "group_norm": lambda x, w: F.group_norm(x, 2, w[0]),
    "add": lambda x, w: x + w,
    "mul": lambda x, w: x * w,
    "cat": lambda x, w: torch.cat([x, w]),
    "where": lambda x, w: torch.where(x > 0, x, w),
    "gelu": lambda x, _: F.gelu(x),
    "silu": lambda x, _: F.silu(x),
    "tanh": lambda x, _: torch.tanh(x),
    "exp": lambda x, _: torch.exp(x),
    "log": lambda x, _: torch.log(x),
    "rsqrt": lambda x, _: torch.rsqrt(x),
    "pow": lambda x, _: x.pow(2),
    "softplus": lambda x, _: F.softplus(x),
    "sum": lambda x, _: x.sum(),
    "sum over a dimension": lambda x, _: x.sum(-1),
    "mean": lambda x, _: x.mean(-1),
    "cumsum": lambda x, _: x.cumsum(-1),
    "norm": lambda x, _: torch.linalg.vector_norm(x),
    "cross_entropy": lambda x, _: F.cross_entropy(x, torch.zeros_like(x[:, 0], dtype=torch.int64)),
    "nll_loss": lambda x, _: F.nll_loss(x, torch.zeros_like(x[:, 0], dtype=torch.int64)),
    "mse_loss": F.mse_loss,
    "bce with logits": F.binary_cross_entropy_with_logits,
    "embedding": lambda x, w: F.embedding(torch.zeros_like(x[0], dtype=torch.int64), w),
    "dropout": lambda x, _: F.dropout(x, 0.0),
    "widened softmax": lambda x, _: x.softmax(-1, dtype=torch.float32),
}


@pytest.fixture(autouse=True)
def _gpu():
    device.register()


@contextlib.contextmanager
def pretend(imitated):
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with kernels.imitate(imitated), fake, torch.autocast("gpu", LOW):
        yield


def outcome(operation, where, dtypes):
    """Return the type of the result, or the kind of refusal."""
    x, w = (torch.ones(8, 8, device=where, dtype=dtype) for dtype in dtypes)
    try:
        return operation(x, w).dtype
    except (RuntimeError, ValueError):
        return "refused"


def mismatches(imitated):
    found = {}
    for name, operation in OPERATIONS.items():
        for dtypes in ((HIGH, HIGH), (LOW, LOW), (LOW, HIGH), (HIGH, LOW)):
            with torch.autocast(imitated, LOW):
                real = outcome(operation, imitated, dtypes)
            with pretend(imitated):
                pretended = outcome(operation, "gpu:0", dtypes)
            if real not in (pretended, "refused"):
                found[name, dtypes] = (real, pretended)
    return found


def test_types_are_those_of_real_cpu_autocast():
    assert mismatches("cpu") == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")
def test_types_are_those_of_real_cuda_autocast():
    assert mismatches("cuda") == {}


def test_cuda_and_cpu_differ_where_pytorch_says_so():
    results = {}
    for imitated in ("cpu", "cuda"):
        with pretend(imitated):
            results[imitated] = {
                name: outcome(OPERATIONS[name], "gpu:0", (LOW, LOW))
                for name in ("softmax", "layer_norm", "exp", "linear", "gelu")
            }
    assert set(results["cpu"].values()) == {LOW}
    assert results["cuda"] == {
        "softmax": HIGH,
        "layer_norm": HIGH,
        "exp": HIGH,
        "linear": LOW,
        "gelu": LOW,
    }


def test_each_weight_is_cast_once_and_forgotten_at_the_end():
    seen = []
    autocast.on_weight_cast.append(seen.append)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            one, other = (nn.Linear(8, 8, device="gpu:0") for _ in range(2))
            x = torch.ones(2, 8, device="gpu:0")
            for repetition in (1, 2):
                with torch.autocast("gpu", LOW):
                    one(other(one(x)))
                    assert len(seen) == 4 * repetition
                assert autocast._cache == {}
    finally:
        autocast.on_weight_cast.remove(seen.append)
    assert [tuple(low.shape) for low in seen[:2]] == [(8, 8), (8,)]


@pytest.mark.parametrize(
    ("make", "num_cached"),
    [
        (lambda w: w, 1),
        (lambda w: w[:4], 0),
        (lambda w: w.detach(), 0),
        (lambda w: w * 1, 0),
    ],
    ids=["weight", "view", "no gradient", "computed"],
)
def test_only_leaves_that_train_are_cached(make, num_cached):
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("gpu", LOW):
        weight = nn.Parameter(torch.ones(8, 8, device="gpu:0"))
        F.linear(torch.ones(2, 8, device="gpu:0"), make(weight))
        assert len(autocast._cache) == num_cached
    with FakeTensorMode(), torch.autocast("gpu", LOW, cache_enabled=False):
        F.linear(torch.ones(2, 8, device="gpu:0"), nn.Parameter(torch.ones(8, 8, device="gpu:0")))
        assert autocast._cache == {}


def test_the_tape_tags_cached_copies_and_sees_them_freed_when_autocast_ends():
    tape = Tape()
    with FakeTensorMode(allow_non_fake_inputs=True), tape:
        linear = nn.Linear(8, 8, bias=False, device="gpu:0")
        with torch.no_grad():
            x = torch.ones(2, 8, device="gpu:0")
        with torch.autocast("gpu", LOW), torch.no_grad():
            pass
        with torch.autocast("gpu", LOW):
            out = linear(x).detach()
            before_end = len(tape.finish().events)
        recording = tape.finish()
        del out
    row = [recording.items[i] for i in recording.item].index(AUTOCAST_CACHE)
    assert recording.num_bytes[row] == 8 * 8 * 2
    assert recording.died[row] == before_end


@pytest.mark.parametrize(("whose", "kind"), [("cuda", "bfloat16"), ("cpu", "float32")])
def test_the_parts_of_an_op_that_is_not_listed_may_be_listed(whose, kind):
    """A CPU lists cross-entropy; CUDA lists the nll_loss in it, which widens log-probabilities."""
    with kernels.imitate(whose), FakeTensorMode(), Tape() as tape:
        logits = torch.empty(64, 32, dtype=torch.bfloat16, device="gpu:0", requires_grad=True)
        with torch.autocast("gpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(logits, torch.zeros(64, dtype=torch.int64, device="gpu:0"))
        recording = tape.finish()
    shapes = [recording.shapes[i] for i in recording.shape_dtype.tolist()]
    ops = [recording.ops[i] for i in recording.op.tolist()]
    made = dict(zip(ops, shapes, strict=True))
    assert made["aten._log_softmax.default"] == ("[64, 32]", kind)
    assert made["aten._to_copy.default"] == ("[64, 32]", "float32")
    assert loss.dtype == torch.float32
