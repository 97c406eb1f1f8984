"""Transformer Engine's linear layers in fp8: what is quantised, and what of it backward waits for.

Source: ``transformer_engine/pytorch/module/{layernorm_linear,linear,_common}.py`` and
``pytorch/distributed.py`` of 2.20, as its own Python runs on the pretend GPU.

Shapes: S tokens between products, T of products.
"""

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.norms import norm_partials, norm_statistics
from brimful.megatron.recipe import Recipe


def norm_linear_in_fp8(  # noqa: PLR0913, PLR0917 - a layer
    m: Memory, at: Layout, chain: Chain, x: Block, shape: tuple[int, int], recipe: Recipe
) -> Block:
    """Run a norm and a product whose columns are cut: [S, inner] to [T, width].

    ``shape``: widths of the input and of the result, on this process.
    """
    inner, width = shape
    between, whole, num = at.between * inner, at.tokens * inner, at.tokens * width
    m.keep(x)
    stats = norm_statistics(m, at)
    row = m.new(recipe.rows(between))
    # What is gathered again in backward is transposed there.
    regathers = at.sequence_parallel and recipe.has_one_scale
    column = m.new(0 if regathers else recipe.columns(between))
    if recipe.norms_apart:
        m.scratch(between * HALF_BYTES)
    gathered = m.new(recipe.rows(whole) if at.sequence_parallel else 0)
    out = m.new(num * HALF_BYTES)
    m.drop(gathered)
    # What is gathered again keeps its rows, too, but in fp8.
    rows = [row] if at.sequence_parallel and recipe.is_fp4 else []
    m.keep(*rows)
    kept = for_backward(m, row, column)

    def backward(gradient: Block) -> Block:
        both = quantised(m, recipe, num)
        again = m.new(recipe.rows(whole) if at.sequence_parallel else 0)
        beside = m.new(whole if at.sequence_parallel and recipe.gathers_beside else 0)
        dgrad = m.new(whole * HALF_BYTES)
        scattered = m.new(between * HALF_BYTES if at.sequence_parallel else 0)
        m.drop(beside)
        turned = m.new(whole if at.sequence_parallel and recipe.transposes else 0)
        wgrad = m.new(0 if at.fuses_wgrad else width * inner * HALF_BYTES)
        m.drop(kept, *rows, again, turned)
        if at.sequence_parallel:
            m.drop(*both)
        dx = m.new(between * HALF_BYTES)
        m.scratch(norm_partials(at, inner))
        if not at.sequence_parallel:
            m.drop(*both)
        m.drop(scattered, *stats, dgrad, gradient, x, wgrad)
        return dx

    chain.add(backward)
    return out


def plain_linear_in_fp8(  # noqa: PLR0913 - each by its name
    m: Memory,
    at: Layout,
    chain: Chain,
    x: Block,
    *,
    shape: tuple[int, int],
    is_cut: bool,
    recipe: Recipe,
    saves: bool,
) -> Block:
    """Run a product without a norm: [S, inner] to [T, width], or to [S, width] by a whole weight.

    ``shape``: widths of the input and of the result, on this process. ``is_cut``: whether the
    weight's columns are cut over tensor parallelism. ``saves``: whether the input is kept as it is,
    and quantised again.
    """
    inner, width = shape
    gathers, tokens = at.sequence_parallel and is_cut, at.tokens if is_cut else at.between
    between, whole, num = at.between * inner, tokens * inner, tokens * width
    regathers = gathers and recipe.has_one_scale
    row = m.new(recipe.rows(between))
    column = m.new(0 if saves or regathers else recipe.columns(between))
    gathered = m.new(recipe.rows(whole) if gathers else 0)
    out = m.new(num * HALF_BYTES)
    m.drop(gathered)
    if saves:
        m.keep(x)
        m.drop(row, column)
        kept = x
    else:
        kept = for_backward(m, row, column)

    def backward(gradient: Block) -> Block:
        both = quantised(m, recipe, num)
        again = _again(m, recipe, between, is_gathered=gathers) if saves else ()
        back = m.new(recipe.rows(whole) if gathers else 0)
        beside = m.new(whole if gathers and recipe.gathers_beside else 0)
        dgrad = m.new(whole * HALF_BYTES)
        scattered = m.new(between * HALF_BYTES) if gathers else dgrad
        m.drop(beside)
        turned = m.new(whole if gathers and recipe.transposes else 0)
        wgrad = m.new(0 if at.fuses_wgrad else width * inner * HALF_BYTES)
        m.drop(back, turned, kept, *both, *again, gradient, wgrad)
        m.drop(*([dgrad] if gathers else []))
        return scattered

    chain.add(backward)
    return out


def linear_in_fp8(  # noqa: PLR0913 - a layer
    m: Memory, at: Layout, chain: Chain, x: Block, *, width: int, recipe: Recipe, saves: bool
) -> Block:
    """Run a product whose rows are cut: [T, width] to [S, hidden].

    ``x``: the input; held by nobody else afterwards, but what keeps it for backward. ``saves``:
    whether the input is kept as it is, and quantised again.
    """
    between, whole, num = at.between * at.hidden, at.tokens * at.hidden, at.tokens * width
    row, column = m.new(recipe.rows(num)), m.new(0 if saves else recipe.columns(num))
    out = m.new(whole * HALF_BYTES)
    if at.sequence_parallel:
        scattered = m.new(between * HALF_BYTES)
        m.drop(out)
        out = scattered
    if saves:
        m.drop(row, column)
        kept = x
    else:
        m.drop(x)
        kept = for_backward(m, row, column)

    def backward(gradient: Block) -> Block:
        both = _gradient(m, at, recipe)
        again = _again(m, recipe, num, is_gathered=False) if saves else ()
        dgrad = m.new(num * HALF_BYTES)
        wgrad = m.new(0 if at.fuses_wgrad else at.hidden * width * HALF_BYTES)
        m.drop(gradient, kept, *both, *again, wgrad)
        return dgrad

    chain.add(backward)
    return out


def quantised(m: Memory, recipe: Recipe | None, num: int) -> tuple[Block, ...]:
    """Quantise so many elements along rows and along columns; nothing without a recipe."""
    return (m.new(recipe.rows(num)), m.new(recipe.columns(num))) if recipe else ()


def for_backward(m: Memory, row: Block, column: Block) -> Block:
    """Let go of the direction that backward does not read; return the other."""
    kept, passing = (column, row) if column.num_bytes else (row, column)
    m.drop(passing)
    return kept


def _again(m: Memory, recipe: Recipe, num: int, *, is_gathered: bool) -> tuple[Block, ...]:
    """Quantise an input that was kept as it is: what is gathered is transposed afterwards."""
    if is_gathered:
        return (m.new(recipe.rows(num)),)
    return m.new(recipe.columns(num)), m.new(num if recipe.has_one_scale else 0)


def _gradient(m: Memory, at: Layout, recipe: Recipe) -> tuple[Block, ...]:
    """Quantise the gradient of [S, hidden], and gather it where it is sharded."""
    between, whole = at.between * at.hidden, at.tokens * at.hidden
    if not at.sequence_parallel:
        return quantised(m, recipe, whole)
    # With one scale it is gathered, and then transposed.
    sent = (
        m.new(recipe.rows(between)),
        m.new(0 if recipe.has_one_scale else recipe.columns(between)),
    )
    gathered = quantised(m, recipe, whole)
    beside = m.new(whole if recipe.gathers_beside else 0)
    m.drop(*sent, beside)
    return gathered
