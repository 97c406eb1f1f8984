"""What a search varies of a strategy, in words for a line of progress."""

from brimful.values.strategy import Strategy


def spell(strategy: Strategy) -> str:
    """Say what a search varies of a strategy."""
    return f"micro-batch {strategy.micro_batch}, {spell_way(*way_of(strategy))}"


def way_of(strategy: Strategy) -> tuple[int, str]:
    """Return chunks of the loss, and what is checkpointed."""
    return strategy.loss_chunks, strategy.activation_checkpointing


def spell_way(chunks: int, kind: str) -> str:
    """Say how a loss is cut and what is checkpointed."""
    return f"checkpointing {kind}, {chunks} loss chunk{'s' if chunks > 1 else ''}"
