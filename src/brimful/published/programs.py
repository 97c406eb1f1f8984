"""In what the programs of published runs differ from ours: rules, each with its source.

A rule says for which runs it holds and what it changes in a micro-batch: copies of the logits
(``logit_copies.py``), how parameters are gathered (``fsdp1.py``, ``root.py``, ``ends.py``), what
blocks keep (``kept.py``) and compute again (``recomputed.py``). No rule names a run. Those whose
``basis`` is ``fitted`` were chosen, among what sources allow, by published figures that are scored:
errors of those rows are in-sample.
"""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

import msgspec

from brimful.cost.additions import Piece
from brimful.cost.family import Family, family_dimensions, family_of, family_shards
from brimful.cost.memory import Step, StepMemory, profile_for, profiles_for, step_memory
from brimful.cost.profiles import is_own
from brimful.cost.programs import HALF
from brimful.cost.sections import Change, changed, lettered
from brimful.cost.shapes import Shape
from brimful.cost.shards import computed_bytes, padded, piece_bytes
from brimful.cost.trained import trained_recipe
from brimful.models.config import layout_of
from brimful.published.ends import Ends, Unit, with_separate_ends
from brimful.published.express import Expressed
from brimful.published.fsdp1 import FlatUnits, as_flat_units
from brimful.published.kept import Kept, at_widths, with_kept
from brimful.published.logit_copies import Copies, widened, with_copies
from brimful.published.packed_head import with_packed_head
from brimful.published.recomputed import Product, with_recomputed
from brimful.published.root import with_resharded_root
from brimful.published.rows import Implementation, LossCopies, Products, PublishedRun, Root
from brimful.published.updates import with_early_updates, with_managed_state, without_gradients
from brimful.text.escaping import Line
from brimful.values.job import IN_FP32, Job, Method
from brimful.values.strategy import Strategy, num_checkpointed, num_micro_batches, recompute_of

AUTOCAST = "autocast over bf16 parameters"
"""What ``PublishedRun.unlike`` says of a recipe in 16 bits that computes a loss in fp32."""


class Units(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a program wraps its model in FSDP1.

    Attributes:
        is_reentrant: Whether checkpoints are.
        widens: Whether gradients of mixed recipes are reduced in fp32.
        mixes: Whether a block's flat parameter has adapters and what they adapt.
        holds: Whether nothing is reduced before the last micro-batch of a step.
    """

    is_reentrant: bool
    widens: bool
    mixes: bool = False
    holds: bool = False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A difference between a program and ours.

    Attributes:
        what: In a line.
        source: Code that shows it.
        basis: Whether that says all, or figures that are scored chose.
        implementations: Whose programs; empty: anyone's, as with all conditions below.
        unlike: What of ``PublishedRun.unlike``; one of them is enough.
        losses: Of ``PublishedRun.loss``.
        methods: Which parameters train.
        model_types: Architectures.
        products: Of ``PublishedRun.products``.
        roots: Of ``PublishedRun.root``.
        is_mixed: Whether the recipe has to be a mixed one, or autocast be on over 16 bits.
        logits: Copies of the logits.
        units: FSDP1 instead of FSDP2, where parameters are sharded.
        kept: Tensors of a block.
        recomputed: Products that selective checkpointing does not keep.
        reshards_root: Whether FSDP2's root gives up its parameters after its forward.
        packs_head: Whether the head is in 4 bits.
        parts_ends: Whether the embedding, and the head with the last norm, are units of their own.
        updates_early: Whether each gradient is used up as soon as it is there.
        manages_state: Whether optimizer state is memory that the allocator does not have.
    """

    what: Line
    source: Line
    basis: Literal["read", "fitted"]
    implementations: tuple[Implementation, ...] = ()
    unlike: tuple[Line, ...] = ()
    losses: tuple[LossCopies, ...] = ()
    methods: tuple[Method, ...] = ()
    model_types: tuple[Line, ...] = ()
    products: tuple[Products, ...] = ()
    roots: tuple[Root, ...] = ()
    is_mixed: bool = False
    logits: Copies | None = None
    units: Units | None = None
    kept: tuple[Kept, ...] = ()
    recomputed: tuple[Product, ...] = ()
    reshards_root: bool = False
    packs_head: bool = False
    parts_ends: bool = False
    updates_early: bool = False
    manages_state: bool = False


class OtherProgram(NamedTuple):
    """What a published run did otherwise.

    Attributes:
        rules: Those that hold for it.
        changes: What they make of a micro-batch.
    """

    rules: tuple[Rule, ...]
    changes: tuple[Change, ...]

    @property
    def updates_otherwise(self) -> bool:
        """Whether its optimizer does what no replay of ours asks for."""
        return any(rule.updates_early or rule.manages_state for rule in self.rules)

    def alter(self, step: Step) -> Step:
        """Return a micro-batch of ours as this program runs it."""
        return changed(step, self.changes) if self.changes else step


@cache
def rules() -> tuple[Rule, ...]:
    """Load all of them."""
    data = resources.files("brimful").joinpath("data/published/programs.json").read_bytes()
    return msgspec.json.decode(data, type=tuple[Rule, ...])


def other_program(run: PublishedRun, expressed: Expressed) -> OtherProgram:
    """Return in what the program of a run differed."""
    mine = tuple(rule for rule in rules() if _holds(rule, run, expressed.job))
    return OtherProgram(mine, changes_of(mine, expressed))


def changes_of(rules: tuple[Rule, ...], expressed: Expressed) -> tuple[Change, ...]:
    """Return what rules make of a run's micro-batches, in order."""
    told = tuple(change for rule in rules for change in _changes(rule, expressed))
    if not told or not _is_own(expressed):
        return told
    vocab_size = expressed.job.model.vocab_size
    return (lambda sections: lettered(sections, vocab_size), *told)


def _is_own(expressed: Expressed) -> bool:
    """Whether a run is predicted by a profile at its model's own widths, which have no letters."""
    job, cluster, strategy = expressed
    family = family_of(job, strategy)
    return is_own(profiles_for(job, strategy.attention, cluster.device, family)[0].key)


def memory_of(expressed: Expressed, program: OtherProgram) -> StepMemory:
    """Return what a step of a program takes; one without a pipeline."""
    job, cluster, strategy = expressed
    family = family_of(job, strategy)
    profile = profile_for(job, strategy.attention, cluster.device, family)
    memory = step_memory(job, strategy, profile, cluster.device, program.alter)
    for rule in program.rules:
        if rule.updates_early:
            memory = without_gradients(memory)
        if rule.manages_state:
            memory = with_managed_state(memory, job)
    return memory


def _holds(rule: Rule, run: PublishedRun, job: Job) -> bool:
    wanted = (
        (rule.implementations, {run.implementation}),
        (rule.unlike, {*run.unlike}),
        (rule.losses, {run.loss}),
        (rule.methods, {job.method}),
        (rule.products, {run.products}),
        (rule.roots, {run.root}),
        (rule.model_types, {job.model.model_type}),
    )
    matches = all(not any_of or not there.isdisjoint(any_of) for any_of, there in wanted)
    is_mixed = job.precision in HALF or AUTOCAST in run.unlike
    return matches and (is_mixed or not rule.is_mixed)


def _changes(rule: Rule, expressed: Expressed) -> Iterator[Change]:
    job, _, strategy = expressed
    family = family_of(job, strategy)
    if rule.updates_early:
        yield lambda sections: with_early_updates(sections, job)
    if rule.logits is not None:
        copies = widened(rule.logits) if _has_wide_logits(job) else rule.logits
        yield lambda sections: with_copies(sections, copies)
    if rule.units is not None and family.gathers and family.is_spread:
        units = _flat_units(rule.units, job, strategy, family)
        yield lambda sections: as_flat_units(sections, units)
    if rule.kept:
        kept = rule.kept
        if _is_own(expressed):
            dims = family_dimensions(job, family)
            kept = tuple(at_widths(each, dims) for each in kept)
        yield lambda sections: with_kept(sections, kept)
    if rule.packs_head:
        yield with_packed_head
    if rule.recomputed and recompute_of(strategy) == "selective":
        yield lambda sections: with_recomputed(sections, rule.recomputed)
    if rule.reshards_root and family.gathers and family.is_spread:
        yield with_resharded_root
    if rule.parts_ends and _has_separate_ends(job, strategy):
        ends = _ends(job, family)
        yield lambda sections: with_separate_ends(sections, ends)


def _has_wide_logits(job: Job) -> bool:
    """Whether the head computes in fp32: held so, and no autocast narrows it."""
    if job.adapter is not None and job.adapter.upcast == "all":
        return job.precision not in HALF
    return job.precision in IN_FP32


def _has_separate_ends(job: Job, strategy: Strategy) -> bool:
    """Whether ends can be told apart: with one micro-batch, two weights, and a whole loss."""
    family = family_of(job, strategy)
    is_plain = family.gathers and family.is_spread and strategy.loss_chunks == 1
    is_whole = job.adapter is None and not job.model.tied_embeddings
    return is_plain and is_whole and num_micro_batches(job, strategy) == 1


def _ends(job: Job, family: Family) -> Ends:
    layout = layout_of(job.model)
    embedding, head = (
        _unit(job, family, [parameter.shape for parameter in part])
        for part in (layout.embedding, (*layout.final, *layout.head))
    )
    return Ends(embedding, head)


def _unit(job: Job, family: Family, shapes: list[Shape]) -> Unit:
    shards, recipe = family_shards(family), trained_recipe(job)
    num, computed = float(padded(shapes, shards)[0]), computed_bytes(job.precision)
    share = num / float(shards[0])
    return Unit(
        whole=round(num * computed),
        cast=round(share * computed) if computed < recipe.parameter else 0,
        reduced=round(num * recipe.gradient),
        shard=round(share * recipe.gradient),
    )


def _flat_units(units: Units, job: Job, strategy: Strategy, family: Family) -> FlatUnits:
    pieces = piece_bytes(job, family)[:, 0]
    recomputes = num_checkpointed(strategy, num_layers=job.model.num_layers) > 0
    is_reentrant = units.is_reentrant and recomputes
    of_block = Piece.BLOCK if units.mixes else Piece.BLOCK_GRADIENTS
    return FlatUnits(
        block_bytes=round(pieces[of_block]),
        rest_bytes=round(pieces[Piece.REST_GRADIENTS]),
        widens=units.widens and job.precision in HALF,
        prefetches=not is_reentrant,
        keeps_inputs=is_reentrant and job.adapter is not None,
        holds=units.holds and num_micro_batches(job, strategy) > 1,
    )
