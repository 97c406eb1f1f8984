"""The peak of one stage: states, and micro-batches in the order in which its schedule runs them.

Source: ``megatron/core/pipeline_parallel/schedules.py``.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import replay
from brimful.hardware.cuda_libraries import libraries
from brimful.megatron.attention import scores_bytes
from brimful.megatron.blocks import Asked, Block, Chain, Memory
from brimful.megatron.cross import Encoded
from brimful.megatron.ends import embed, embedding_gradient, end_of_encoder, loss
from brimful.megatron.layer import layer
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, HOPPER, Layout
from brimful.megatron.several import losses
from brimful.megatron.states import (
    Shape,
    attention_shapes,
    gradient_copies,
    joining_shape,
    load,
    mlp_shapes,
    moment_bytes,
    parameters,
    quantised_weights,
    state_bytes,
    widened_bytes,
)

_TE_WORKSPACE, _TE_WORKSPACE_HOPPER = 4 * 2**20, 32 * 2**20 + 1024
"""Of cuBLAS within Transformer Engine (``get_cublas_workspace_size_bytes``)."""
_STREAMS = 4
"""On which Transformer Engine runs products of experts (``_NUM_MAX_UB_STREAMS`` and its like)."""
_ZEROS_BYTES = 9
"""Of an element while zeros are counted: a mask, and the mask as numbers."""


class Peak(NamedTuple):
    """What a stage takes.

    Attributes:
        predicted_peak_allocated_bytes: Blocks at most, as ``torch.cuda`` counts them.
        predicted_peak_reserved_bytes: What the allocator holds at most, by its replay.
        state_bytes: Of it parameters, gradients and states.
        between_steps_bytes: Blocks that are there when a step has ended.
        place: What runs at the peak.
        fits: Whether the card has room for it.
    """

    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: int
    state_bytes: int
    between_steps_bytes: int
    place: str
    fits: bool


def peak(
    at: Layout, *, cublas_bytes: int | None, capacity_bytes: int | None, allocator: str = ""
) -> Peak:
    """Return what a process takes at its peak.

    ``cublas_bytes``: PyTorch's workspace of a handle, where the environment says; None: the card's.
    ``capacity_bytes``: what the allocator can have; None: anything. ``allocator``: settings, as
    ``PYTORCH_CUDA_ALLOC_CONF`` spells them.
    """
    m = Memory()
    m.place = "loading"
    load(m, at)
    handle = libraries().cublas_bytes(at.capability) if cublas_bytes is None else cublas_bytes
    multiplies = at.is_last or at.attention in ("unfused", "local")
    signs = at.recipe is not None and at.recipe.is_fp4  # NVFP4's transform is a product
    workspaces = [handle] * max(2 * multiplies, signs)
    if at.transformer_engine or at.experts.num:  # routers multiply by Transformer Engine anyway
        workspaces.append(_TE_WORKSPACE_HOPPER if at.capability >= HOPPER else _TE_WORKSPACE)
        # Products of experts run on streams of their own, each with a workspace.
        workspaces += workspaces[-1:] * (_STREAMS * (at.experts.num > 0 and at.experts.is_grouped))
    for num_bytes in workspaces:
        m.new(num_bytes)
    has_mask = at.mask and (at.is_first or at.is_last)
    mask = m.new(at.micro_batch * at.seq_len * at.seq_len // at.cp if has_mask else 0)
    _lasting(m, at)
    copies: list[Block] = []
    held, of_before = list[Block](), list[Block]()
    for is_first_step in (True, False):  # the first makes the optimizer's states at its end
        m.drop(*copies)
        _Schedule(m, at, held, of_before).run()
        m.place = "the optimizer's step"
        copies = [m.new(num_bytes) for num_bytes in gradient_copies(at)]
        for num_bytes in moment_bytes(at) if is_first_step else ():
            m.new(num_bytes)
        m.drop(*[m.new(num_bytes) for num_bytes in widened_bytes(at)])
        if at.counts_zeros:
            m.scratch(_ZEROS_BYTES * max(max(each, default=0) for each in parameters(at)))
    m.drop(mask)
    settings = parse_settings(allocator)
    done = replay(m.requests(), settings=settings, capacity_bytes=capacity_bytes)
    fits = done.out_of_memory is None
    if not fits:  # what it would take where there is room
        done = replay(m.requests(), settings=settings, capacity_bytes=None)
    return Peak(
        predicted_peak_allocated_bytes=done.peak_allocated_bytes,
        predicted_peak_reserved_bytes=done.peak_reserved_bytes,
        state_bytes=state_bytes(at),
        between_steps_bytes=m.alive(),
        place=m.peak()[1],
        fits=fits,
    )


class OneLayer(NamedTuple):
    """One layer of a micro-batch.

    Attributes:
        asked: What it asks for, forward and backward.
        kept_bytes: What forward leaves for backward.
    """

    asked: Asked
    kept_bytes: int


@lru_cache(maxsize=4096)
def _one_layer(at: Layout, *, is_mixture: bool) -> OneLayer:
    at = replace(at, experts=replace(at.experts, layers=(is_mixture,)))
    m, schedule = Memory(), Chain()
    x = m.new(0)
    before = m.alive()
    x = _layer(m, at, schedule, x, (0, 0))
    kept = m.alive() - before
    m.drop(schedule.run(m.new(0)))
    m.drop(x)
    return OneLayer(m.asked(), kept)


def _layers(at: Layout) -> tuple[OneLayer, ...]:
    """Return every layer of the stage."""
    alone = replace(at, stage=0, chunks=((1,),), dp=1, num_micro=1, group=1, decoder=None,
                    recompute_layers=1, recompute_method="uniform",
                    experts=replace(at.experts, layers=()))  # fmt: skip
    recipe = at.recipe and replace(at.recipe, first_plain=0, last_plain=0)
    by_block = at.recompute == "full" and at.recompute_method == "block"

    num_layers, known = at.num_layers, dict[tuple[bool, bool, bool], OneLayer]()

    def one(index: int, number: int) -> OneLayer:
        is_kept = by_block and index >= at.recompute_layers
        is_plain = at.recipe is not None and at.recipe.is_plain(number, num_layers)
        is_mixture = at.experts.layers[number]
        if (kind := (is_kept, is_plain, is_mixture)) not in known:
            own = replace(
                alone,
                recompute="" if is_kept else at.recompute,
                recipe=None if is_plain else recipe,
            )
            known[kind] = _one_layer(own, is_mixture=is_mixture)
        return known[kind]

    return tuple(
        one(index, at.first_of(chunk) + index)
        for chunk in range(at.vp)
        for index in range(at.layers_of(chunk))
    )


def asked_of(at: Layout) -> Asked:
    """Return what one micro-batch asks for, forward and backward."""
    m = Memory()
    ends = replace(at, decoder=None)
    if at.is_first:
        embedding_gradient(m, ends, embed(m, ends, Chain()))
    if at.is_last:
        chain = Chain()
        waiting: list[Block] = []
        _losses(m, ends, chain, m.new(at.between * at.hidden * HALF_BYTES), waiting)
        m.drop(chain.run(m.new(0)), *waiting)
    every = [m.asked(), *(each.asked for each in _layers(at))]
    return Asked(*map(sum, zip(*every, strict=True)))


def least_bytes(at: Layout) -> int:
    """Return what is there at once at least: states, and what all runs ahead keep."""
    kept = sum(each.kept_bytes for each in _layers(at)) / at.vp
    ahead = min(at.num_ahead + 1, at.num_micro * at.vp)
    return state_bytes(at) + int(ahead * kept)


def _layer(  # noqa: PLR0913, PLR0917 - a layer
    m: Memory,
    at: Layout,
    chain: Chain,
    x: Block,
    which: tuple[int, int],
    encoded: Encoded | None = None,
) -> Block:
    """Run a layer forward, or keep what it is given alone and run it again in backward.

    ``which``: its place in the chunk, and its number in the model. ``encoded``: what an encoder
    made, where it is a decoder's.
    """
    index, number = which
    if at.recompute != "full" or (at.recompute_method == "block" and index >= at.recompute_layers):
        return layer(m, at, chain, x, number, encoded)
    out = m.without_gradients(lambda: layer(m, at, Chain(), x, number, encoded), x)

    def backward(gradient: Block) -> Block:
        again = Chain()
        m.drop(layer(m, at, again, x, number, encoded))
        return again.run(gradient)

    chain.add(backward)
    return out


def _losses(m: Memory, at: Layout, chain: Chain, x: Block, waiting: list[Block]) -> None:
    """Run what is behind the last layer."""
    if not at.predicts_more:
        loss(m, at, chain, x, waiting)
        return
    number = at.num_layers - 1
    losses(m, at, chain, x, waiting, lambda own, given: _layer(m, at, own, given, (0, number)))


def _lasting(m: Memory, at: Layout) -> None:
    """Allocate what is made once: gathered inputs of the output layer, dummy gradients, angles.

    Weights in fp8, too: every step writes over them.
    """
    if at.recipe:
        for num in itertools.chain(*quantised_weights(at)):
            m.new(at.recipe.lasting(num))
    if at.is_last and at.sequence_parallel:
        m.new(at.tokens * at.hidden * HALF_BYTES)
    if at.fuses_wgrad:
        for rows, columns in sorted(_shapes(at)):  # a dummy gradient for each shape
            m.new(rows * columns * HALF_BYTES)
        if at.is_last:
            m.new(at.vocab // at.tp * at.hidden * HALF_BYTES)
    if at.experts.num and at.experts.dispatcher == "allgather":
        m.new(at.gathered * at.hidden * HALF_BYTES)
    if at.attention == "local":
        m.new(scores_bytes(at))
    m.new(_angles_bytes(at))


def _angles_bytes(at: Layout) -> int:
    """Bytes of angles of positions: of all layers, or of each its own with cosines and sines."""
    if at.latent.is_used:
        of_layer = at.seq_len * at.latent.positions * (FLOAT_BYTES + 2 * HALF_BYTES)
        return len(at.numbers_here) * of_layer
    return at.seq_len * at.channels * FLOAT_BYTES if at.has_rope else 0


def _shapes(at: Layout) -> set[Shape]:
    """Return the shapes of matrices of layers of the stage, whose gradients are added in place."""
    mixtures = {at.experts.layers[number] for number in at.numbers_here}
    widths = [at.ffn // at.tp] * (False in mixtures)
    if True in mixtures:
        widths += [at.experts.width, at.experts.shared_ffn // at.tp]
    of_layers = (mlp_shapes(at, width) for width in widths if width)
    joining = [joining_shape(at)] if at.predicts_more and at.is_last else []
    return {*attention_shapes(at), *joining, *itertools.chain.from_iterable(of_layers)}


class _Schedule:
    """Micro-batches through a stage: warm-up, one forward and one backward, the rest."""

    def __init__(self, m: Memory, at: Layout, held: list[Block], of_before: list[Block]) -> None:
        self._m, self._at = m, at
        # What the last loss was made of holds what its stage received, and the gradient of that,
        # until the next loss is made, be it in the next step. Where stages have several chunks, the
        # loop's functions hold each other, and with them what went backward last, for a step.
        self._held, self._of_before = held, of_before
        self._chains: dict[tuple[int, int], Chain] = {}
        self._received: dict[tuple[int, int], Block] = {}
        # The loop's own variables: the input that went backward last, and its gradient.
        self._last: list[Block] = []
        # Where stages have several chunks: a gradient that is received before a forward runs.
        self._early: list[Block] = []
        self._waiting: list[Block] = []

    def run(self) -> None:
        """Run as many micro-batches as show the peak: two rounds of all chunks beyond warm-up."""
        at = self._at
        ahead = at.num_ahead
        in_a_round = at.group * at.vp
        rounds = -(-(ahead + 2 * at.pp * at.vp) // in_a_round)
        total = min(at.num_micro * at.vp, rounds * in_a_round)
        ahead = min(ahead, total)
        order = [at.chunk_of(index) for index in range(total)]
        back = [(at.vp - 1 - chunk, row) for chunk, row in order]
        for step in range(total + ahead):
            if at.vp > 1 and step >= ahead:
                self._early = [self._received_gradient(*back[step - ahead])]
            if step < total:
                self._forward(*order[step])
            if step >= ahead:
                self._backward(*back[step - ahead])
        if at.vp > 1:
            self._m.drop(*self._of_before)
            self._of_before[:] = self._last
        else:
            self._m.drop(*self._last)
        self._m.drop(*self._waiting)  # as the last stage has nothing else to do

    def _forward(self, chunk: int, row: int) -> None:
        m, at = self._m, self._at
        is_last = at.is_last and chunk == at.vp - 1
        chain = self._chains[chunk, row] = Chain()
        if at.is_first and chunk == 0:
            m.place = "the embedding"
            x = embed(m, at, chain)
        else:
            x = m.new(at.between * at.hidden * HALF_BYTES)
            m.keep(x)  # the loop's own variables hold it until the next is there
            self._received[chunk, row] = x
        m.place = "a layer forward"
        for index in range(at.layers_of(chunk)):
            x = _layer(m, at, chain, x, (index, at.first_of(chunk) + index))
        if at.decoder is not None:
            self._decode(chain, x, at.decoder)
        elif is_last:
            m.place = "the loss"
            m.drop(*self._held)
            self._held.clear()
            _losses(m, at, chain, x, self._waiting)
        else:
            m.drop(x)  # sent, and its data freed

    def _decode(self, chain: Chain, x: Block, at: Layout) -> None:
        """Run a decoder, and the loss, behind an encoder."""
        m = self._m
        encoded = Encoded(end_of_encoder(m, self._at, chain, x), self._at)
        x = embed(m, at, chain)
        for index in range(at.num_layers):
            x = _layer(m, at, chain, x, (index, index), encoded)
        m.place = "the loss"
        loss(m, at, chain, x, self._waiting)

    def _received_gradient(self, chunk: int, _: int) -> Block:
        at = self._at
        is_last = at.is_last and chunk == at.vp - 1
        return self._m.new(0 if is_last else at.between * at.hidden * HALF_BYTES)

    def _backward(self, chunk: int, row: int) -> None:
        m, at = self._m, self._at
        received = self._received.pop((chunk, row), None)
        if self._last and at.vp == 1:
            m.drop(self._last.pop(0))
        is_last = at.is_last and chunk == at.vp - 1
        m.place = "the loss" if is_last else "a layer backward"
        gradient = self._early.pop() if self._early else self._received_gradient(chunk, row)
        gradient = self._chains.pop((chunk, row)).run(gradient)
        if at.is_first and chunk == 0:
            m.place = "the embedding's gradient"
            embedding_gradient(m, at, gradient)
            if at.vp == 1:
                return
        m.drop(*self._last)
        self._last = [] if at.is_first and chunk == 0 else [gradient]
        if received is None:
            return
        if is_last:
            m.keep(received, gradient)
            self._held.extend((received, gradient))
        if at.vp == 1 or not self._received:
            self._last.insert(0, received)
        else:
            m.drop(received)
