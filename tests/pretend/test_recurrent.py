"""LSTM, GRU and RNN on the pretend GPU: against runs for real on a CPU, and as cuDNN runs them."""

import functools
import json

import pytest
import torch
from tests.pretend.real_peaks import measured
from torch import nn
from torch.nn.utils import rnn

from brimful import pretend
from brimful.cli.main import main
from brimful.errors import UnsupportedError
from brimful.pretend import cpu_recurrent
from brimful.show.summary import LOWER_BOUND

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

RELATIVE, LOOSE_BYTES = 0.001, 256
STEPS, ROWS, WIDTH, HIDDEN = 4, 32, 48, 64
LENGTHS = [4] * 20 + [3] * 8 + [1] * 4


class Padded(nn.Module):
    """Packs its input by known lengths, and pads the output again."""

    def __init__(self, layers, *, batch_first=False):
        super().__init__()
        self.layers, self.batch_first = layers, batch_first

    def forward(self, x):
        lengths = torch.tensor(LENGTHS)
        out = self.layers(rnn.pack_padded_sequence(x, lengths, batch_first=self.batch_first))[0]
        return rnn.pad_packed_sequence(out, batch_first=self.batch_first)


class Cells(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell(WIDTH, HIDDEN)

    def forward(self, x):
        hidden = None
        for one in x:
            hidden = self.cell(one, hidden)
        return hidden


class Given(nn.Module):
    """Is given hidden states, of which one is used after the layers as well."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        h = x.new_zeros(2, ROWS, HIDDEN).requires_grad_()
        out, (last, _) = self.layers(x, (h, h * 2))
        return out + last.sum() + h.sum(), None


def stacked(kind, **how):
    return functools.partial(kind, WIDTH, HIDDEN, **how)


def padded(kind, **how):
    return lambda: Padded(kind(WIDTH, HIDDEN, **how), batch_first=how.get("batch_first", False))


MODULES = {
    "lstm": stacked(nn.LSTM),
    "lstm two layers both ways": stacked(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.2),
    "lstm without biases": stacked(nn.LSTM, num_layers=2, bias=False),
    "lstm batch first": stacked(nn.LSTM, batch_first=True),
    "lstm odd": functools.partial(nn.LSTM, WIDTH, 37),
    "lstm with projections": stacked(nn.LSTM, proj_size=16, bidirectional=True),
    "lstm packed": padded(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm given states": lambda: Given(nn.LSTM(WIDTH, HIDDEN, num_layers=2)),
    "lstm cell": lambda: Cells(nn.LSTMCell),
    "gru": stacked(nn.GRU, num_layers=2, dropout=0.2),
    "gru both ways": stacked(nn.GRU, bidirectional=True, batch_first=True),
    "gru packed": padded(nn.GRU, bidirectional=True, batch_first=True),
    "gru cell": lambda: Cells(nn.GRUCell),
    "rnn": stacked(nn.RNN, num_layers=2, bidirectional=True, batch_first=True),
    "rnn packed": padded(nn.RNN, nonlinearity="relu"),
    "rnn cell": lambda: Cells(nn.RNNCell),
}


def train(make, device, *, dtype=torch.float32, autocast=False):
    torch.manual_seed(0)
    model = make().to(device, dtype)
    batch_first = getattr(model, "batch_first", False)
    shape = (ROWS, STEPS, WIDTH) if batch_first else (STEPS, ROWS, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(*shape, device=device, dtype=dtype)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            out = model(x)
            out = out[0] if isinstance(out, tuple) else out
            loss = out.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def infer(make, device):
    model = make().to(device)
    with torch.inference_mode():
        model(torch.randn(STEPS, ROWS, WIDTH, device=device))


def compare(program, dtype=torch.float32):
    """Simulate with a CPU's kernels, and either hit the real peak or say that it is a bound."""
    with pretend.gpu(imitate="cpu", says_cuda=False) as run:
        program("gpu:0")
    real, _ = measured(program)
    if run.tape.unknown_ops:
        assert not cpu_recurrent.is_measured(dtype)
        assert run.report().statement.startswith("peak at least")
        assert run.peak_allocated_bytes < real
    else:
        assert run.peak_allocated_bytes == pytest.approx(real, rel=RELATIVE, abs=LOOSE_BYTES)
        assert run.report().statement.startswith("simulated peak")


@pytest.mark.few(6)
@pytest.mark.parametrize("name", MODULES)
def test_training_takes_what_it_takes_for_real(name):
    compare(functools.partial(train, MODULES[name]))


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN's LSTM takes no bf16 here"
)
@pytest.mark.few
@pytest.mark.parametrize("name", ["lstm two layers both ways", "gru"])
@pytest.mark.parametrize("how", [{"dtype": torch.bfloat16}, {"autocast": True}])
def test_training_in_bf16_takes_what_it_takes_for_real(name, how):
    compare(functools.partial(train, MODULES[name], **how), torch.bfloat16)


@pytest.mark.parametrize("name", ["lstm", "lstm odd", "lstm two layers both ways", "gru", "rnn"])
def test_inference_takes_what_it_takes_for_real(name):
    compare(functools.partial(infer, MODULES[name]))


def test_many_sequences_are_multiplied_step_by_step():
    def program(device):
        nn.LSTM(WIDTH, HIDDEN).to(device)(torch.randn(3, 130, WIDTH, device=device))

    compare(program)


def test_of_a_cpu_nobody_measured_the_peak_is_a_bound(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    with pretend.gpu(imitate="cpu", says_cuda=False) as run:
        train(MODULES["lstm"], "gpu:0")
    assert "mkldnn_rnn_layer (2 calls)" in run.report().statement


# -- as cuDNN runs them --


def on_cuda(name, **how):
    with pretend.gpu(says_cuda=False) as run:
        train(MODULES[name], "gpu:0", **how)
    return run


def ops_of(run):
    recording = run.recording()
    return {recording.ops[number] for number in recording.op}


CUDNN = [name for name in MODULES if "cell" not in name]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CUDNN)
def test_cudnn_runs_a_stack_in_one_call_and_its_memory_is_unknown(name):
    run = on_cuda(name)
    assert {"aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default"} <= ops_of(run)
    assert not any("thnn" in op or "mkldnn" in op for op in ops_of(run))
    calls = run.tape.unknown_ops
    assert calls["aten._cudnn_rnn.default"] == calls["aten._cudnn_rnn_backward.default"] == 2
    assert run.report().statement.startswith("peak at least ")
    assert "_cudnn_rnn (2 calls)" in run.report().statement
    assert run.recording().live_bytes()[-1] <= pretend_left(run)


def pretend_left(run):
    """What outlives a program: cuBLAS's workspaces, nothing of the layers."""
    recording = run.recording()
    stays = [n for n, op in enumerate(recording.op) if "cuBLAS" in recording.ops[op]]
    return sum(int(recording.num_bytes[n]) for n in stays)


def test_fused_cells_run_step_by_step_on_cuda():
    assert "aten._thnn_fused_lstm_cell.default" in ops_of(on_cuda("lstm cell"))
    assert "aten._thnn_fused_gru_cell.default" in ops_of(on_cuda("gru cell"))


def test_without_cudnn_cells_run_step_by_step():
    with torch.backends.cudnn.flags(enabled=False):
        ops = ops_of(on_cuda("lstm"))
    assert "aten._thnn_fused_lstm_cell.default" in ops
    assert "aten._cudnn_rnn.default" not in ops


def test_parameters_lie_in_one_buffer_and_so_do_their_gradients():
    with pretend.gpu(says_cuda=False) as run:
        model = nn.LSTM(WIDTH, HIDDEN, num_layers=2).to("gpu:0")
        num = sum(p.numel() for p in model.parameters())
        assert len({p.untyped_storage()._cdata for p in model.parameters()}) == 1
        assert run.tape.memory_stats(0)["allocated_bytes.all.current"] == 4 * num
        model(torch.randn(STEPS, ROWS, WIDTH, device="gpu:0"))[0].sum().backward()
        assert len({p.grad.untyped_storage()._cdata for p in model.parameters()}) == 1


def test_under_autocast_the_weights_have_a_buffer_in_the_lower_type():
    run = on_cuda("lstm", autocast=True)
    num = 4 * HIDDEN * (WIDTH + HIDDEN + 2)
    recording = run.recording()
    shapes = [recording.shapes[n] for n in recording.shape_dtype]
    assert (f"[{num}]", "bfloat16") in shapes


def test_dropout_between_layers_keeps_a_state():
    with pretend.gpu(says_cuda=False) as run:
        train(MODULES["lstm two layers both ways"], "gpu:0")
        assert run.tape.memory_stats(0)["allocated_bytes.all.current"] >= 2**21


def test_the_first_line_says_so_in_every_form(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.GRU(8, 16).cuda()\n"
        "model(torch.randn(2, 3, 8, device='cuda'))[0].sum().backward()\n"
    )
    assert main(["pretend", "--", str(script)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"FITS {LOWER_BOUND} ")
    assert "cudnn_rnn" in said
    assert main(["pretend", "--json", "--", str(script)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert next(iter(printed)) == "statement"
    assert printed["statement"].startswith("peak at least ")
    page = tmp_path / "page.html"
    assert main(["pretend", "--page", str(page), "--", str(script)]) == 0
    head = page.read_text("utf-8").partition("</header>")[0]
    assert f"<h1>{LOWER_BOUND} " in head


def test_lengths_that_nobody_knows_are_refused():
    with pretend.gpu(says_cuda=False):
        x, lengths = torch.randn(4, 3, 8, device="gpu:0"), (torch.rand(3) * 4).long()
        with pytest.raises(UnsupportedError, match="_pack_padded_sequence"):
            rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
