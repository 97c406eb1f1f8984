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
    m: Memory, at: Layout, chain: Chain, x: Block, width: int, recipe: Recipe
) -> Block:
    """Run a norm and a product whose columns are cut: [S, hidden] to [T, width].

    Args:
        m: What is alive.
        at: The process.
        chain: What backward does.
        x: The input, which somebody holds.
        width: Of the result on this process.
        recipe: How it is quantised.
    """
    between, whole, num = at.between * at.hidden, at.tokens * at.hidden, at.tokens * width
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
    kept = for_backward(m, row, column)

    def backward(gradient: Block) -> Block:
        both = quantised(m, recipe, num)
        again = m.new(recipe.rows(whole) if at.sequence_parallel else 0)
        beside = m.new(whole if at.sequence_parallel and recipe.gathers_beside else 0)
        dgrad = m.new(whole * HALF_BYTES)
        scattered = m.new(between * HALF_BYTES if at.sequence_parallel else 0)
        m.drop(beside)
        turned = m.new(whole if at.sequence_parallel and recipe.transposes else 0)
        wgrad = m.new(0 if at.fuses_wgrad else width * at.hidden * HALF_BYTES)
        m.drop(kept, again, turned)
        if at.sequence_parallel:
            m.drop(*both)
        dx = m.new(between * HALF_BYTES)
        m.scratch(norm_partials(at))
        if not at.sequence_parallel:
            m.drop(*both)
        m.drop(scattered, *stats, dgrad, gradient, x, wgrad)
        return dx

    chain.add(backward)
    return out


def linear_in_fp8(  # noqa: PLR0913 - a layer
    m: Memory, at: Layout, chain: Chain, x: Block, *, width: int, recipe: Recipe, saves: bool
) -> Block:
    """Run a product whose rows are cut: [T, width] to [S, hidden].

    Args:
        m: What is alive.
        at: The process.
        chain: What backward does.
        x: The input; held by nobody else afterwards, but what keeps it for backward.
        width: Of the input on this process.
        recipe: How it is quantised.
        saves: Whether the input is kept as it is, and quantised again.
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
        again = [m.new(recipe.columns(num))] if saves else []
        again += [m.new(num)] if saves and recipe.has_one_scale else []
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
