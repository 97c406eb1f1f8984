"""What the devices of a pipeline ask of their allocators: ``requests.py``, stage by stage.

A device works through its list (``pipeline_orders.py``); each piece of work asks for what its runs
say (``stage_runs.py``), among rows of its own micro-batch. What stages tell each other comes here:
room for messages is made once, a result lives until its own backward, a gradient that was sent as
long as something names it.

Source: ``torch/distributed/pipelining/stage.py`` and ``schedules.py``.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from brimful.allocator.replay import Requests
from brimful.cost.additions import COME, NUM_PIECES, Piece, of_part
from brimful.cost.asked import Asked
from brimful.cost.family import family_dimensions
from brimful.cost.fsdp_units import EXPERTS, REST, Group, units_of
from brimful.cost.micro_batch import MicroBatch, Work, marked_bytes, sizes_in
from brimful.cost.piece_tensors import Tensors, piece_tensors
from brimful.cost.pipeline_orders import Row
from brimful.cost.programs import HALF
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.requests import NUM_STEPS
from brimful.cost.resident import Made, adapted, drawn, sent, state_of_shapes
from brimful.cost.row_sums import chips_of, row_sums
from brimful.cost.situations import Situation, Turn, every_situation, num_kept, shortened, turns_of
from brimful.cost.stage_memory import (
    batch_bytes,
    counts_of,
    num_ways_in,
    part_of,
    pieces_of,
    updated_on,
)
from brimful.cost.stage_runs import Act, stage_runs
from brimful.cost.stage_site import (
    Site,
    Stage,
    classes_of,
    drawn_on,
    message_bytes,
    message_of,
    shapes_of,
    stages_on,
    stream_element,
)
from brimful.cost.trained import trained_recipe
from brimful.cost.trajectory import kind_bytes, middles
from brimful.cost.update import transients, updater_of
from brimful.techniques.optimizers import Updated
from brimful.techniques.parallel.stages import LOOPED
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS, TRANSIENTS
from brimful.values.strategy import num_micro_batches

if TYPE_CHECKING:
    from brimful.cost.profiles import Alike

_GATHERED_ONCE = frozenset({Piece.REST_CAST, Piece.REST_GATHERED, Piece.REST})
_TRANSIENT, _SAVED = map(ITEM_NAMES.index, (TRANSIENTS, SAVED_ACTIVATIONS))


def row_makers(site: Site) -> tuple[Callable[[], Requests], ...]:
    """Return of every kind of device of a pipeline what makes its requests."""

    def maker(place: int) -> Callable[[], Requests]:
        return lambda: device_asked(site, place).requests()

    return tuple(maker(place) for place in classes_of(site).values())


def device_asked(site: Site, place: int) -> Asked:
    """Follow a device of a pipeline from loading to the end of its second step."""
    return _Device(site, place).asked()


class _Prepared(NamedTuple):
    """An act of a stage."""

    batch: MicroBatch
    works: tuple[Work, ...]


class _Device:
    """What a device does, and what it has asked for."""

    def __init__(self, site: Site, place: int) -> None:
        self._site, self._place = site, place
        self._stages = stages_on(site, place)
        strategy = site.strategy
        self._num = num_micro_batches(site.job, strategy)
        self._row = Row(strategy.pp, self._num, strategy.stages_per_device)
        self._asked = Asked()
        self._sent: list[int] = []
        self._sums = row_sums(site.job, site.family, chips_of(site.job, site.device))
        message = message_of(site)
        self._passing: Alike = ((message.factors, message.coefficient),), _TRANSIENT
        self._kept: Alike = self._passing[0], _SAVED
        self._shards = site.family.is_spread and site.family.gathers
        self._has_buckets = site.family.is_spread and not site.family.gathers
        self._is_ahead = strategy.pp_schedule in LOOPED and self._shards
        self._ahead: dict[int, list[list[int]]] = {}
        self._results: dict[tuple[int, int], list[int]] = {}
        self._opened: set[str] = set()
        self._acts: dict[tuple[int, Act, bool], _Prepared] = {}

    def asked(self) -> Asked:
        asked, job = self._asked, self._site.job
        asked.make(self._loaded())
        updated = self._updated()
        asked.make(state_of_shapes(job, list(chain.from_iterable(updated))))
        for step in range(NUM_STEPS):
            batch = [asked.allocate(batch_bytes(self._site) // 2) for _ in range(2)]  # and labels
            if not step:
                self._make_room()
            self._step()
            asked.free([*self._sent, *batch])
            self._sent.clear()
            for group in updated:
                for bucket in transients(job, updater_of(self._site.device), group):
                    asked.pass_by(bucket)
            asked.drop_gradients(has_embedding=self._stages[0].ends.is_first)
        return asked

    def _trained(self) -> list[Updated]:
        return [each for stage in self._stages for each in shapes_of(self._site, stage).trained]

    def _updated(self) -> list[list[Updated]]:
        """Return what this device updates; parted experts are apart."""
        return updated_on(self._site, [shapes_of(self._site, stage) for stage in self._stages])

    def _loaded(self) -> Iterator[Made]:
        """Yield this device's parameters, then what is drawn whole: others', or all if sharded."""
        site, held = self._site, list(self._held())
        yield from held
        yield from map(drawn, drawn_on(site, self._place))
        if self._has_buckets:  # buckets of whole gradients, behind what DDP sends
            yield sent([size for made in held for size in made.stays])
            yield Made(
                (sum(each.num for each in self._trained()) * trained_recipe(site.job).gradient,)
            )

    def _held(self) -> Iterator[Made]:
        """Yield this device's parameters."""
        site = self._site
        if site.job.adapter is not None:
            shards = site.strategy.dp_shard if site.family.gathers else 1
            parts = [shapes_of(site, stage).parameters for stage in self._stages]
            parted = site.family if site.family.ep > 1 else None
            yield from adapted(site.job, shards, chain.from_iterable(parts), parted=parted)
            return
        element = trained_recipe(site.job).parameter
        held = chain.from_iterable(self._updated())
        for each in held if site.family.gathers else self._trained():
            yield Made((each.num * element,))

    def _make_room(self) -> None:
        """Make room for what other stages send: of each micro-batch, each way in."""
        num_bytes = round(message_bytes(self._site))
        for stage in self._stages:
            for _ in range(num_ways_in(stage) * self._num):
                self._asked.allocate(num_bytes)

    # -- a step --

    def _step(self) -> None:
        site, strategy = self._site, self._site.strategy
        row = shortened(strategy.pp_schedule, self._row)
        zero = strategy.zero if site.family.gathers else 0
        every = list(
            every_situation(strategy.pp_schedule, row, self._place, zero, keeps_waited=False)
        )
        turns = turns_of([now.chunk for now in every if now.act.phase != "reduce"])
        done, others = Counter[tuple[int, str]](), self._num - row.num_micro_batches
        for now in every:
            micro = done[now.chunk, now.act.phase]
            done[now.chunk, now.act.phase] += 1
            if now.act.phase != "reduce":
                self._take_turn(next(turns))
            self._asked.enter(now.chunk, micro)
            if now.act.phase == "reduce":
                self._reduce(self._stages[now.chunk])
                continue
            if all(made or gone for made, gone in zip(now.made, now.reduced, strict=True)):
                # Keep what was sent of micro-batches that were not walked through.
                num = num_kept(self._site.strategy.pp_schedule, self._row, self._place)
                for _ in range(others * num):
                    self._sent.append(self._asked.allocate(round(message_bytes(self._site))))
                others = 0
            self._act(now, micro)

    def _take_turn(self, turn: Turn) -> None:
        """Give up stages, then fill the buffers of others before their turn.

        ``unshard(async_op=True)`` takes the stream that computes; blocks that are whole stay so.
        """
        if not self._is_ahead:
            return
        asked = self._asked
        for chunk in turn.evicted:
            asked.enter(chunk, 0)
            for piece in asked.whichever(Piece.REST, Piece.BLOCK, Piece.EXPERTS):
                asked.drop(piece)
        for chunk in turn.fetched:
            pieces = self._pieces(self._stages[chunk])
            self._ahead[chunk] = []
            for part, group in self._whole(chunk):
                cast, buffer = part * NUM_PIECES + group.cast, part * NUM_PIECES + group.gathered
                shard = self._ask(cast, pieces)
                self._ahead[chunk].append(self._ask(buffer, pieces))
                asked.free(shard)

    def _take_gathered(self, chunk: int) -> None:
        """Copy what was gathered ahead into whole parameters."""
        asked, pieces = self._asked, self._pieces(self._stages[chunk])
        for (part, group), rows in zip(self._whole(chunk), self._ahead.pop(chunk), strict=True):
            for sign, piece in of_part(part, *group.copies):
                if piece in pieces and sign == COME:
                    asked.come_piece(piece, pieces[piece])
                elif piece in pieces:
                    asked.go_piece(piece)
            asked.free(rows)

    def _whole(self, chunk: int) -> list[tuple[int, Group]]:
        """List what of a stage is whole once it is gathered."""
        stage = self._stages[chunk]
        pieces = self._pieces(stage)
        every = units_of(stage.blocks.parts)
        return [(part, group) for part, group in every if part * NUM_PIECES + group.whole in pieces]

    def _ask(self, piece: int, pieces: Mapping[int, Tensors]) -> list[int]:
        """Ask for a piece that comes and goes, in one, where it has any bytes."""
        return [self._asked.allocate(sum(pieces[piece].num_bytes))] if piece in pieces else []

    def _act(self, now: Situation, micro: int) -> None:
        """Run a micro-batch through a stage; what others handed to it lies in the room for that."""
        asked, ends, work = self._asked, self._stages[now.chunk].ends, (now.chunk, micro)
        if now.chunk in self._ahead:
            self._take_gathered(now.chunk)
        prepared = self._prepared(now)
        self._opened.add(now.act.phase)
        is_forward = now.act.phase == "forward"
        if is_forward and not ends.is_first:
            asked.come(self._kept, 0)
            asked.come(self._passing, 0)
        elif not is_forward and not ends.is_last:
            asked.come(self._passing, 0)
        since = asked.num_rows
        prepared.batch.ask(asked, prepared.works)
        if is_forward and not ends.is_last:
            is_wide = stream_element(self._site) == FP32_BYTES  # the next block kept it too
            kinds = (self._kept,) if is_wide else (self._passing, self._kept)  # as the only one's
            made = (asked.take(key, since) for key in kinds)
            self._results[work] = next((rows for rows in made if rows), [])
            asked.leave(_TRANSIENT)
        elif not is_forward:
            self._send([] if ends.is_first else asked.take(self._passing))
            asked.leave()
            self._end(self._results.pop(work, []))

    def _reduce(self, stage: Stage) -> None:
        """Make shards of whole gradients: what is in no block first, then blocks in order.

        A group's parameters go, then the buffer of the group before; its own comes.
        """
        asked, pieces = self._asked, self._pieces(stage)
        widens = self._site.job.precision in HALF
        before: int | None = None
        for part, group in units_of(stage.blocks.parts):
            first = part * NUM_PIECES
            whole, buffer, shard = first + group.whole, first + group.buffer, first + group.shard
            if whole not in pieces:
                continue
            if asked.has(whole):  # and was not given up
                asked.go_piece(whole)
            if before is not None:
                asked.go_piece(before)
            before = None
            if buffer not in pieces:  # of what is frozen nothing is reduced
                continue
            before, is_parted = buffer, group is EXPERTS
            kept = self._ask(first + Piece.EXPERTS_KEPT, pieces) if is_parted else []
            asked.come_piece(buffer, pieces[buffer])
            if group is not REST:
                self._let_go(first, group, widens=widens)
            last = self._ask(first + Piece.EXPERTS_LAST, pieces) if is_parted else []
            asked.come_piece(shard, pieces[shard])
            divided = self._ask(first + Piece.EXPERTS_DIVIDED, pieces) if is_parted else []
            if group is REST:
                self._let_go(first, group, widens=widens)
            asked.free([*divided, *last, *kept])
        if before is not None:
            asked.go_piece(before)

    def _let_go(self, first: int, group: Group, *, widens: bool) -> None:
        """Give back a group's whole gradients, in the type that they are held in."""
        if widens:
            self._asked.go_piece(first + group.held)
            return
        is_experts = group is EXPERTS if self._parts_experts else None
        self._asked.reduce(is_block=group is not REST, is_experts=is_experts, newest=True)

    @property
    def _parts_experts(self) -> bool:
        return self._site.family.ep > 1

    def _pieces(self, stage: Stage) -> dict[int, Tensors]:
        """Return the tensors of what sharding adds to a stage."""
        site = self._site
        if not self._shards:
            return {}
        parts, totals = shapes_of(site, stage), pieces_of(site, stage)[:, 0]
        return piece_tensors(site.job, site.family, (*parts.blocks, parts.rest), totals)

    def _send(self, rows: list[int]) -> None:
        """Keep a gradient that is sent: until the next one is there, or to the end of the step."""
        if self._site.strategy.pp_schedule == "1f1b":
            self._asked.free(self._sent)
            self._sent.clear()
        self._sent += rows

    def _end(self, result: list[int]) -> None:
        """Give back what a stage handed on; where all is waited for at the end, only there."""
        if self._site.strategy.pp_schedule in LOOPED:
            self._sent += result
        else:
            self._asked.free(result)

    def _prepared(self, now: Situation) -> _Prepared:
        """Return what an act asks for; the first of a phase also asks for what libraries keep."""
        site, stage = self._site, self._stages[now.chunk]
        opens = now.act.phase not in self._opened
        act = now.act._replace(is_first=now.act.is_first or opens)
        key = now.chunk, act, opens
        if key not in self._acts:
            found = stage_runs(part_of(site, stage), act)
            dims = family_dimensions(site.job, site.family)
            num_bytes = kind_bytes(found.profile, dims)
            sizes = sizes_in(site.job, site.family, found.profile, num_bytes)
            marked = marked_bytes(site.job, site.family, site.device, found.profile)
            marked = marked if opens else {"embedding": marked["embedding"]}
            middle = middles(counts_of(site, stage), found.runs)
            pieces = self._pieces(stage)
            if self._is_ahead:
                pieces = {each: pieces[each] for each in pieces if each not in _GATHERED_ONCE}
            batch = MicroBatch(found.profile, sizes, middle, pieces, marked, self._sums)
            self._acts[key] = _Prepared(batch, batch.works_of(found.runs))
        return self._acts[key]
