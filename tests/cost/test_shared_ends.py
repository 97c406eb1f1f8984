"""What the last block of a kind lets go of, and what each takes over from the one before it."""

from brimful.cost.profiles import EventKind, Profile, Run, Term, Work
from brimful.cost.shared_ends import ends_of

MASK, STREAM, ACTIVATION = "SS", "BS", "S"


def made_of(*runs, sequence):
    """Make a profile of runs: each its phase, its group and its events, ``-`` where they free."""
    names = list(dict.fromkeys(event for *_, events in runs for event in events))
    kinds = [
        EventKind((Term(name.strip("-"), -1.0 if name.startswith("-") else 1.0),), 0, "")
        for name in names
    ]
    works = [Work(tuple(map(names.index, events)), (), (), (), 0) for *_, events in runs]
    profile = Profile(
        schema="", key="", versions=(), source_hash="", kinds=tuple(kinds), works=tuple(works),
        variants={}, sequence=sequence,
    )  # fmt: skip
    told = tuple(Run(*of[:2], "other", work) for work, of in enumerate(runs))
    return {
        phase: {kind: [names[event] for event in ends.events] for kind, ends in each.items()}
        for phase, each in ends_of(profile, told).items()
    }


def test_a_mask_is_let_go_of_by_the_block_that_runs_last_of_its_kind():
    found = made_of(
        ("forward", "", [MASK, STREAM]),
        *(("forward", f"plain:{place}", [STREAM]) for place in range(3)),
        ("backward", "plain:2", [f"-{STREAM}"]),
        ("backward", "plain:1", [f"-{STREAM}", f"-{MASK}"]),
        ("backward", "plain:0", [f"-{STREAM}"]),
        sequence=(0, 1, 1),
    )
    assert found == {"backward": {1: [f"-{MASK}"]}}


def test_what_a_block_takes_over_from_another_goes_in_each_of_them():
    """The first is given nothing here, and lets go of nothing: the last of its kind is no other."""
    found = made_of(
        ("forward", "", [ACTIVATION]),
        ("forward", "plain:0", [STREAM]),
        *(("forward", f"plain:{place}", [STREAM, f"-{STREAM}"]) for place in (1, 2)),
        ("backward", "plain:2", [f"-{STREAM}"]),
        sequence=(0, 1, 0),
    )
    assert found == {}
