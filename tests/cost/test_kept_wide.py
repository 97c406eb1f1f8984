"""What a class keeps in fp32 beside 16 bits: its bytes, and when a unit of it does what."""

from msgspec.structs import replace

from brimful.cost.additions import COME, GO, Additions, Piece, Way, gather
from brimful.cost.profiles import PROFILE_SCHEMA, EventKind, Profile, Run, Term, Work
from brimful.cost.spread import _moved_inside
from brimful.models.layout import Blocks, Layout, Parameter, without_gradients
from brimful.values.results import GRADIENTS, ITEM_NAMES, TRANSIENTS

GRADIENT, OTHER = (ITEM_NAMES.index(item) for item in (GRADIENTS, TRANSIENTS))
KINDS = (
    EventKind((Term("BS", 8.0),), OTHER, ""),
    EventKind((Term("", 64.0),), GRADIENT, ""),
    EventKind((Term("BS", -8.0),), OTHER, ""),
    EventKind((Term("", 32.0),), GRADIENT, ""),
)
WAY = Way(
    zero=3, accumulate="reduce-each", is_first=True, is_last=True, widens=False, tied=False,
    inner=frozenset({64}),
)  # fmt: skip
RUN = Run("backward", "plain", "middle", 0)
MORE = Additions((), ((GO, Piece.BLOCK), (GO, Piece.BLOCK_BUFFER), (COME, Piece.BLOCK_BUFFER)))


def profile(events=(0, 1, 0, 2)):
    work = Work(events, (), (), (), len(events))
    return Profile(
        schema=PROFILE_SCHEMA, key="", versions=(), source_hash="", kinds=KINDS, works=(work,),
        variants={},
    )  # fmt: skip


def test_a_unit_inside_lets_go_of_what_the_block_before_was_reduced_from():
    more, inside = _moved_inside(profile(), RUN, MORE, WAY)
    assert more.behind == ((GO, Piece.BLOCK), (COME, Piece.BLOCK_BUFFER))
    assert inside == ((3, ((GO, Piece.BLOCK_BUFFER),)),)  # behind the gradient of what comes in


def test_the_next_block_is_gathered_where_backward_comes_to_the_first_unit():
    own = ((COME, Piece.BLOCK), (GO, Piece.BLOCK_GATHERED))
    ahead = gather(Piece.BLOCK_CAST, Piece.BLOCK_GATHERED)
    # A unit of 64 bytes, what lies between two units, and the first of them; nothing is reduced.
    events = (0, 1, 2, 3, 0, 1, 2)
    more, inside = _moved_inside(profile(events), RUN, Additions((*own, *ahead), ()), WAY)
    assert more.before == own
    assert [each for each in inside if each.signed] == [(4, ahead)]


def test_without_such_a_unit_it_goes_at_the_end():
    for way in (WAY._replace(inner=frozenset()), WAY._replace(inner=frozenset({128}))):
        assert _moved_inside(profile(), RUN, MORE, way) == (MORE, ())
    forward = replace(RUN, phase="forward")
    assert _moved_inside(profile(), forward, MORE, WAY) == (MORE, ())


def test_names_of_parameters_without_gradients_are_those_of_all_blocks():
    one, other = (Parameter(name, (2,), "norm") for name in ("one.weight", "other.weight"))
    layout = Layout((one,), (Blocks("layers", 0, 3, (one, other)),), (), ())
    told = without_gradients(layout, {"layers.*.one.weight": 1}, beside=False)
    assert [p.learns for p in (*told.embedding, *told.blocks[0].parameters)] == [True, False, True]
