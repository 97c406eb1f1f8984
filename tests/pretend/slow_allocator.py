"""The caching allocator, slow and obvious: what ``brimful.allocator.replay`` must equal.

A segment is a list of blocks in order of address; every search looks at every block, neighbours
that are alike are always one block, and every statistic is a sum over all blocks, taken after each
thing that happens. Follows ``c10/cuda/CUDACachingAllocator.cpp`` rule by rule.
"""

from dataclasses import dataclass, field

from brimful.allocator.replay import OutOfMemory, PoolReserved, Replay

KIB, MIB = 1024, 1024**2
FREE, USED, WAITING, UNMAPPED = "free", "used", "waiting", "unmapped"
ENDLESS = 1 << 80
STATISTICS = ("allocated", "requested", "active", "reserved", "inactive_split")


def round_size(size, divisions):
    if size < 512:
        return 512
    interval = min(max(size.bit_length() - 1 - 20, 0), 15)
    parts = divisions[interval]
    if parts > 1 and size > 512 * parts:
        floor = 1 << (size.bit_length() - 1)
        steps = range(floor, 2 * floor + 1, floor // parts)
        return next(step for step in steps if step >= size)
    return (size + 511) // 512 * 512


def segment_size(size):
    if size <= MIB:
        return 2 * MIB
    if size < 10 * MIB:
        return 20 * MIB
    return (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)


@dataclass(eq=False)
class Block:
    size: int
    state: str
    requested: int = 0


@dataclass(eq=False)
class Segment:
    stream: int
    is_small: bool
    expandable: bool
    blocks: list
    free_since: int = 0

    def address(self, block):
        place = next(i for i, other in enumerate(self.blocks) if other is block)
        return sum(other.size for other in self.blocks[:place])

    def is_split(self):
        return len(self.blocks) > 1

    def mapped(self):
        return sum(block.size for block in self.blocks if block.state != UNMAPPED)

    def tidy(self):
        """Merge free with free and unmapped with unmapped."""
        merged = []
        for block in self.blocks:
            if block.size == 0:
                continue
            if merged and merged[-1].state == block.state and block.state in {FREE, UNMAPPED}:
                merged[-1].size += block.size
            else:
                merged.append(block)
        self.blocks = merged

    def replace(self, block, *parts):
        place = self.blocks.index(block)
        self.blocks[place : place + 1] = parts
        self.tidy()


@dataclass
class SlowAllocator:
    settings: object
    capacity: int | None
    segments: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    peaks: dict = field(default_factory=lambda: dict.fromkeys(STATISTICS, 0))
    reserved_at_peak: tuple = ()
    happened: set = field(default_factory=set)
    num_retries: int = 0
    num_large_requests: int = 0
    short: int = 0

    # -- statistics --

    def statistics(self):
        now = dict.fromkeys(STATISTICS, 0)
        for segment in self.segments:
            now["reserved"] += segment.mapped()
            for block in segment.blocks:
                if block.state == USED:
                    now["allocated"] += block.size
                if block.state in {USED, WAITING}:
                    now["active"] += block.size
                    now["requested"] += block.requested
                if block.state == FREE and segment.is_split() and not segment.expandable:
                    now["inactive_split"] += block.size
        return now

    def sample(self):
        now = self.statistics()
        if now["reserved"] > self.peaks["reserved"]:
            self.reserved_at_peak = self.reserved_by_pool()
        self.peaks = {name: max(self.peaks[name], now[name]) for name in STATISTICS}

    def reserved_by_pool(self):
        held = {}
        for segment in self.segments:
            key = (segment.stream, not segment.is_small)
            held[key] = held.get(key, 0) + segment.mapped()
        return tuple(sorted(held.items()))

    # -- what a program calls --

    def malloc(self, requested, stream, now):
        for entry in sorted(self.waiting, key=lambda entry: entry[:2]):
            if entry[0] <= now:
                self.complete(entry)
        size = round_size(requested, self.settings.roundup_power2_divisions)
        is_small = size <= MIB
        if not is_small:
            self.num_large_requests += 1
        found = self.find(size, stream, is_small) or self.obtain(size, stream, is_small)
        if found is None:
            return None
        segment, block = found
        rest = block.size - size
        if self.should_split(segment, rest, size):
            used = Block(size, USED, requested)
            segment.replace(block, used, Block(rest, FREE))
        else:
            used = block
            block.state, block.requested = USED, requested
        self.sample()
        return segment, used

    def free(self, segment, block, row, now, until):
        block.state = WAITING
        if until > now:
            self.happened.add("waited")
            self.waiting.append((until, row, segment, block))
            self.sample()
        else:
            self.release(segment, block)

    def complete(self, entry):
        self.waiting.remove(entry)
        self.release(entry[2], entry[3])

    def release(self, segment, block):
        block.state = FREE
        segment.tidy()
        if not segment.is_split() and not segment.is_small:
            segment.free_since = self.num_large_requests
        self.sample()

    def empty_cache(self):
        for entry in sorted(self.waiting, key=lambda entry: entry[:2]):
            self.complete(entry)
        for segment in list(self.segments):
            if segment.expandable:
                for block in [block for block in segment.blocks if block.state == FREE]:
                    self.unmap(segment, block)
            elif segment.blocks[0].state == FREE and not segment.is_split():
                self.segments.remove(segment)
        self.sample()

    # -- choosing --

    def free_blocks(self, stream, is_small):
        """All free blocks of a pool, by size and address."""
        found = [
            (block.size, place, segment.address(block), segment, block)
            for place, segment in enumerate(self.segments)
            if (segment.stream, segment.is_small) == (stream, is_small)
            for block in segment.blocks
            if block.state == FREE
        ]
        return [entry[3:] for entry in sorted(found, key=lambda entry: entry[:3])]

    def find(self, size, stream, is_small):
        blocks = [(s, b) for s, b in self.free_blocks(stream, is_small) if b.size >= size]
        if not blocks:
            return None
        place = 0
        while place + 1 < len(blocks) and self.room(*blocks[place + 1]) < self.room(*blocks[place]):
            place += 1
        have = blocks[place][1].size
        limit = self.settings.max_split_size_bytes
        if size < limit <= have:
            return None
        if size >= limit and have >= size + self.settings.max_non_split_rounding_bytes:
            return None
        return blocks[place]

    def room(self, segment, block):
        after = segment.blocks[segment.blocks.index(block) + 1 :][:1]
        return block.size + sum(b.size for b in after if b.state == UNMAPPED)

    def should_split(self, segment, rest, size):
        if segment.is_small or segment.expandable:
            return rest >= 512
        return size < self.settings.max_split_size_bytes and rest > MIB

    # -- device memory --

    def obtain(self, size, stream, is_small):
        self.collect_garbage()
        found = self.extend(size, stream, is_small)
        if found is None and self.return_oversize(size, stream, is_small):
            found = self.extend(size, stream, is_small)
        if found is None:
            self.empty_cache()
            self.num_retries += 1
            found = self.extend(size, stream, is_small)
        return found

    def fits(self, limit, num_bytes):
        short = self.statistics()["reserved"] + num_bytes - (ENDLESS if limit is None else limit)
        if short > 0:
            self.short = short
        return short <= 0

    def extend(self, size, stream, is_small):
        if not self.fits(self.settings.allowed_bytes, segment_size(size)):
            return None
        if self.settings.expandable_segments:
            return self.expand(size, stream, is_small)
        if not self.fits(self.capacity, segment_size(size)):
            return None
        block = Block(segment_size(size), FREE)
        self.segments.append(Segment(stream, is_small, False, [block]))
        self.sample_reserved()
        return self.segments[-1], block

    def sample_reserved(self):
        """A new segment counts as reserved at once; its block is in no pool yet."""
        now = self.statistics()["reserved"]
        if now > self.peaks["reserved"]:
            self.peaks["reserved"] = now
            self.reserved_at_peak = self.reserved_by_pool()

    def return_oversize(self, size, stream, is_small):
        limit = self.settings.max_split_size_bytes
        if limit >= 1 << 62 or self.settings.expandable_segments:
            return False
        need = max(size, limit)
        blocks = self.free_blocks(stream, is_small)
        enough = [segment for segment, block in blocks if block.size >= need]
        if enough:
            self.happened.add("oversize")
            self.segments.remove(enough[0])
            return True
        returned = 0
        for segment, block in reversed(blocks):
            if returned >= need or block.size < limit:
                break
            self.happened.add("oversize")
            returned += block.size
            self.segments.remove(segment)
        return returned >= need

    def collect_garbage(self):
        settings = self.settings
        if not settings.garbage_collection_threshold or settings.allowed_bytes is None:
            return
        threshold = int(settings.garbage_collection_threshold * settings.allowed_bytes)
        target = self.statistics()["reserved"] - threshold
        reclaimed = 0
        while reclaimed < target:
            whole = [
                segment
                for segment in self.segments
                if not segment.is_small
                and not segment.is_split()
                and segment.blocks[0].state == FREE
            ]
            if not whole:
                return
            age = {id(s): self.num_large_requests - s.free_since for s in whole}
            average = sum(age.values()) / len(whole)
            for segment in whole:
                if age[id(segment)] >= average:
                    reclaimed += segment.blocks[0].size
                    self.segments.remove(segment)
                    self.happened.add("collected")

    # -- expandable segments --

    def expand(self, size, stream, is_small):
        segment = self.expandable_segment(stream, is_small)
        address = self.lowest_room(segment, size)
        while True:
            first = next(b for b in segment.blocks if segment.address(b) == address)
            have = first.size if first.state == FREE else 0
            if have >= size:
                return segment, first
            gap = segment.blocks[segment.blocks.index(first) + (1 if have else 0)]
            assert gap.state == UNMAPPED
            if not self.map(segment, gap, min(size - have, gap.size)):
                return None

    def expandable_segment(self, stream, is_small):
        for segment in self.segments:
            if (segment.stream, segment.is_small) == (stream, is_small):
                return segment
        self.segments.append(Segment(stream, is_small, True, [Block(ENDLESS, UNMAPPED)]))
        return self.segments[-1]

    def lowest_room(self, segment, size):
        """The lowest address from where free and unmapped blocks, some unmapped, have room."""
        for place, block in enumerate(segment.blocks):
            if block.state != UNMAPPED:
                continue
            before = segment.blocks[place - 1] if place else None
            start = place - 1 if before is not None and before.state == FREE else place
            room = 0
            for following in segment.blocks[start:]:
                if following.state not in {FREE, UNMAPPED}:
                    break
                room += following.size
            if room >= size:
                return segment.address(segment.blocks[start])
        raise AssertionError("the last block is endless")

    def map(self, segment, gap, size):
        page = 2 * MIB if segment.is_small else 20 * MIB
        num_bytes = (size + page - 1) // page * page
        if not self.fits(self.capacity, num_bytes):
            return False
        segment.replace(gap, Block(num_bytes, FREE), Block(gap.size - num_bytes, UNMAPPED))
        self.sample()
        return True

    def unmap(self, segment, block):
        page = 2 * MIB if segment.is_small else 20 * MIB
        address = segment.address(block)
        first = (address + page - 1) // page * page
        last = (address + block.size) // page * page
        if first < last:
            self.happened.add("unmapped")
            segment.replace(
                block,
                Block(first - address, FREE),
                Block(last - first, UNMAPPED),
                Block(address + block.size - last, FREE),
            )


def slow_replay(columns, settings, capacity, flushes=()):
    """The same as ``replay``; columns are lists: events, num_bytes, streams, in_use_until."""
    events, num_bytes, streams, in_use_until = columns
    allocator = SlowAllocator(settings, capacity)
    blocks, failure = {}, None
    for event, row in enumerate(events):
        if event in flushes:
            allocator.empty_cache()
        if row >= 0 and num_bytes[row]:
            blocks[row] = allocator.malloc(num_bytes[row], streams[row], event)
            if blocks[row] is None:
                reserved = allocator.statistics()["reserved"]
                failure = OutOfMemory(
                    event=event,
                    requested_bytes=num_bytes[row],
                    short_bytes=allocator.short,
                    reserved_bytes=reserved,
                )
                break
        elif row < 0 and num_bytes[~row]:
            allocator.free(*blocks[~row], ~row, event, in_use_until[~row])
    return allocator, summary(allocator, failure)


def summary(allocator, failure):
    peaks = allocator.peaks
    return Replay(
        peak_allocated_bytes=peaks["allocated"],
        peak_requested_bytes=peaks["requested"],
        peak_active_bytes=peaks["active"],
        peak_reserved_bytes=peaks["reserved"],
        peak_inactive_split_bytes=peaks["inactive_split"],
        num_retries=allocator.num_retries,
        out_of_memory=failure,
        reserved_at_peak=tuple(
            PoolReserved(stream=stream, is_small=not is_large, reserved_bytes=num_bytes)
            for (stream, is_large), num_bytes in allocator.reserved_at_peak
            if num_bytes
        ),
    )
