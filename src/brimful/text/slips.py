"""By how many slips of the hand one word is another."""


def num_slips(one: str, other: str) -> int:
    """Count the letters that one word has too many, too few, as others, or with its neighbour's."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, its in enumerate(other, 1):
            swapped = row > 1 and column > 1 and (one[row - 2], letter) == (its, other[column - 2])
            ways = [last[column] + 1, line[-1] + 1, last[column - 1] + (letter != its)]
            line.append(min([*ways, before[column - 2] + 1] if swapped else ways))
        before, last = last, line
    return last[-1]
