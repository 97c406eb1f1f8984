"""Recurrent layers as a CPU runs them: its LSTM is oneDNN's, the others are made of operations.

PyTorch has these layers' code in C++ and asks there whether a tensor lies on a CPU. On one it
multiplies the inputs of all steps at once and takes the gates of a cell apart; on any other device
it has fused cells. So that the pretend GPU can imitate a CPU, that code stands here once more, with
what lives how long in it.

Source: ``aten/src/ATen/native/RNN.cpp``; ``mkldnn_rnn`` in ``aten/src/ATen/native/mkldnn/RNN.cpp``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

LSTM, GRU, TANH, RELU = "lstm", "gru", "rnn_tanh", "rnn_relu"
_LSTM_GATES, _GRU_GATES = 4, 3
_ONEDNN_LSTM = 2
"""``ideep::rnn_kind::LSTM``."""
_aten = torch.ops.aten

Hidden = tuple[torch.Tensor, ...]
"""What one step hands to the next: of an LSTM [h, c], of others [h]."""


class Weights(NamedTuple):
    """Parameters of one layer in one direction.

    Attributes:
        ih: [gates * hidden, input].
        hh: [gates * hidden, hidden, or the projection].
        bias_ih: [gates * hidden], or None.
        bias_hh: [gates * hidden], or None.
        hr: [projection, hidden] of an LSTM with projections, else None.
    """

    ih: torch.Tensor
    hh: torch.Tensor
    bias_ih: torch.Tensor | None
    bias_hh: torch.Tensor | None
    hr: torch.Tensor | None


class Layers(NamedTuple):
    """How the layers of one call are stacked.

    Attributes:
        kind: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        weights: Of every layer, and in it of every direction.
        num_layers: How many layers.
        dropout: Probability between two layers, 0 outside of training.
        bidirectional: Whether each layer runs in both directions.
    """

    kind: str
    weights: list[Weights]
    num_layers: int
    dropout: float
    bidirectional: bool


def gathered(params: Sequence[torch.Tensor], *, biases: bool, projects: bool) -> list[Weights]:
    """Sort a flat list of parameters by layer and direction.

    ``params``: as ``nn.RNNBase`` lists them.
    """
    each = 2 + 2 * biases + projects
    found = []
    for start in range(0, len(params), each):
        one = list(params[start : start + each])
        bias_ih, bias_hh = one[2:4] if biases else (None, None)
        found.append(Weights(one[0], one[1], bias_ih, bias_hh, one[-1] if projects else None))
    return found


# -- cells: one step --


def _gates(given: torch.Tensor, h: torch.Tensor, weights: Weights, *, is_ready: bool) -> Any:
    gates = functional.linear(h, weights.hh, weights.bias_hh)
    return gates.add_(given if is_ready else _inputs(given, weights))


def _inputs(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    return functional.linear(x, weights.ih, weights.bias_ih)


def _lstm_cell(given: torch.Tensor, hidden: Hidden, weights: Weights, *, is_ready: bool) -> Hidden:
    h, c = hidden
    gates = _gates(given, h, weights, is_ready=is_ready)
    chunks = gates.unsafe_chunk(_LSTM_GATES, 1)
    entry, forget = chunks[0].sigmoid_(), chunks[1].sigmoid_()
    cell, exit_ = chunks[2].tanh_(), chunks[3].sigmoid_()
    c = (forget * c).add_(entry * cell)
    h = exit_ * c.tanh()
    if weights.hr is not None:
        h = torch.matmul(h, weights.hr.t())
    return h, c


def _gru_cell(given: torch.Tensor, hidden: Hidden, weights: Weights, *, is_ready: bool) -> Hidden:
    (h,) = hidden
    ready = given if is_ready else _inputs(given, weights)
    inputs = ready.unsafe_chunk(_GRU_GATES, 1)
    del ready
    chunks = functional.linear(h, weights.hh, weights.bias_hh).unsafe_chunk(_GRU_GATES, 1)
    reset = chunks[0].add_(inputs[0]).sigmoid_()
    update = chunks[1].add_(inputs[1]).sigmoid_()
    new = inputs[2].add(chunks[2].mul_(reset)).tanh_()
    return ((h - new).mul_(update).add_(new),)


def _simple_cell(act: Callable[..., torch.Tensor]) -> Callable[..., Hidden]:
    def cell(given: torch.Tensor, hidden: Hidden, weights: Weights, *, is_ready: bool) -> Hidden:
        return (act(_gates(given, hidden[0], weights, is_ready=is_ready)),)

    return cell


CELLS: dict[str, Callable[..., Hidden]] = {
    LSTM: _lstm_cell,
    GRU: _gru_cell,
    TANH: _simple_cell(torch.tanh),
    RELU: _simple_cell(torch.relu),
}


# -- layers: all steps --

_Result = tuple[torch.Tensor, Hidden]


def _steps(
    kind: str, inputs: Sequence[torch.Tensor], hidden: Hidden, weights: Weights
) -> tuple[list[torch.Tensor], Hidden]:
    outputs = []
    for one in inputs:
        hidden = CELLS[kind](one, hidden, weights, is_ready=True)
        outputs.append(hidden[0])
    return outputs, hidden


def _full(kind: str, x: torch.Tensor, hidden: Hidden, weights: Weights) -> _Result:
    inputs = _inputs(x, weights)
    outputs, last = _steps(kind, inputs.unbind(0), hidden, weights)
    return torch.stack(outputs, 0), last


def _slice(hidden: Hidden, start: int, stop: int) -> Hidden:
    return tuple(x.narrow(0, start, stop - start) for x in hidden)


def _joined(hiddens: Sequence[Hidden]) -> Hidden:
    return tuple(torch.cat(list(parts), 0) for parts in zip(*hiddens, strict=True))


def _packed(
    kind: str, x: torch.Tensor, sizes: Sequence[int], hidden: Hidden, weights: Weights
) -> _Result:
    inputs, outputs, ended = _inputs(x, weights), [], []
    offset, last = 0, sizes[0]
    for count in sizes:
        one = inputs.narrow(0, offset, count)
        offset += count
        if last > count:
            ended.append(_slice(hidden, count, last))
            hidden = _slice(hidden, 0, count)
        last = count
        hidden = CELLS[kind](one, hidden, weights, is_ready=True)
        outputs.append(hidden[0])
    return torch.cat(outputs, 0), _joined([hidden, *ended[::-1]])


def _packed_reversed(
    kind: str, x: torch.Tensor, sizes: Sequence[int], given: Hidden, weights: Weights
) -> _Result:
    inputs, outputs = _inputs(x, weights), []
    offset, last = x.shape[0], sizes[-1]
    hidden = _slice(given, 0, last)
    for count in reversed(sizes):
        if count > last:
            hidden = _joined([hidden, _slice(given, last, count)])
        one = inputs.narrow(0, offset - count, count)
        offset -= count
        last = count
        hidden = CELLS[kind](one, hidden, weights, is_ready=True)
        outputs.append(hidden[0])
    return torch.cat(outputs[::-1], 0), hidden


# -- stacks of layers --


def run(
    layers: Layers, x: torch.Tensor, hidden: Hidden, sizes: Sequence[int] | None
) -> tuple[torch.Tensor, Hidden]:
    """Run layers that are made of operations.

    ``x``: [steps, batch, input]; packed: [rows, input]. ``hidden``: of every layer and direction:
    [layers, batch, hidden] each. ``sizes``: how many sequences each step has, packed; else None.
    Returns the output, and the last hidden states, stacked.
    """
    hiddens = list(zip(*(part.unbind(0) for part in hidden), strict=True))
    ways = 2 if layers.bidirectional else 1
    finals: list[Hidden] = []
    for number in range(layers.num_layers):
        own = slice(ways * number, ways * (number + 1))
        x, last = _layer(layers.kind, x, sizes, hiddens[own], layers.weights[own])
        finals += last
        del last
        if layers.dropout and number < layers.num_layers - 1:
            x = torch.dropout(x, layers.dropout, True)
    return x, tuple(torch.stack(list(parts), 0) for parts in zip(*finals, strict=True))


def _layer(
    kind: str,
    x: torch.Tensor,
    sizes: Sequence[int] | None,
    hiddens: Sequence[Hidden],
    weights: Sequence[Weights],
) -> tuple[torch.Tensor, list[Hidden]]:
    if len(weights) > 1:
        if sizes is None:
            inputs = _inputs(x, weights[0])
            steps = inputs.unbind(0)
            forth, last = _steps(kind, steps, hiddens[0], weights[0])
            forth_output = torch.stack(forth, 0)
            inputs = _inputs(x, weights[1])
            steps = inputs.unbind(0)
            back, first = _steps(kind, steps[::-1], hiddens[1], weights[1])
            back_output = torch.stack(back[::-1], 0)
            return torch.cat([forth_output, back_output], -1), [last, first]
        forth, last = _packed(kind, x, sizes, hiddens[0], weights[0])
        back, first = _packed_reversed(kind, x, sizes, hiddens[1], weights[1])
        return torch.cat([forth, back], -1), [last, first]
    if sizes is None:
        out, last = _full(kind, x, hiddens[0], weights[0])
    else:
        out, last = _packed(kind, x, sizes, hiddens[0], weights[0])
    return out, [last]


def run_onednn(layers: Layers, x: torch.Tensor, hidden: Hidden, *, train: bool) -> Any:
    """Run an LSTM's layers by oneDNN, one call for each layer and direction; as ``run``."""
    x = x.contiguous()
    h, c = (part.contiguous() for part in hidden)
    ways = 2 if layers.bidirectional else 1
    outputs: list[Any] = [None] * ways
    hs, cs = [], []
    for number in range(layers.num_layers):
        for way in range(ways):
            index = ways * number + way
            outputs[way], last_h, last_c = _onednn_layer(
                layers, index, x, (h[index], c[index]), reverse=way > 0, train=train
            )
            hs.append(last_h)
            cs.append(last_c)
        x = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        if layers.dropout and number < layers.num_layers - 1:
            x = torch.dropout(x, layers.dropout, True)
    return x, (torch.stack(hs, 0), torch.stack(cs, 0))


def _onednn_layer(  # noqa: PLR0913 - one call
    layers: Layers, index: int, x: torch.Tensor, hidden: Hidden, *, reverse: bool, train: bool
) -> tuple[Any, Any, Any]:
    one = layers.weights[index]
    has_biases = one.bias_ih is not None
    biases = (one.bias_ih, one.bias_hh)
    if not has_biases:
        # As PyTorch does, in the shapes of the weights.
        biases = (torch.zeros_like(one.ih), torch.zeros_like(one.hh))
    found = _aten.mkldnn_rnn_layer(
        x, one.ih, one.hh, *biases, *hidden, reverse, [], _ONEDNN_LSTM, hidden[1].shape[-1],
        layers.num_layers, has_biases, layers.bidirectional, False, train,
    )  # fmt: skip
    return found[0], found[1], found[2]
