"""Changes that together make a training fit: beside runs of the program that has them."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from brimful import pretend
from brimful.allocator.config import parse_settings
from brimful.allocator.held import held_of
from brimful.pretend.combined import CHECKPOINTED, FUSED, ROUNDED, combined
from brimful.pretend.proportion import Argument, Room, batch_of, most_of
from brimful.units import MIB

pytestmark = pytest.mark.torch

WIDTH, TOKENS, DEPTH, GIVEN = 256, 512, 8, 12
NATIVE = parse_settings("")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, *, checkpoints):
        super().__init__()
        self.words = nn.Embedding(1000, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.checkpoints = checkpoints

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return x


def trained(batch, *, checkpoints=False):
    with pretend.gpu("t4") as run:
        model = Model(checkpoints=checkpoints).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            ids = torch.randint(0, 1000, (batch, TOKENS), device="cuda")
            model(ids).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


def held_bytes(run):
    requests = run.recording().requests()
    return held_of(requests, settings=NATIVE, capacity_bytes=None).peak_reserved_bytes


def told(recording, room_bytes):
    room = Room(NATIVE, room_bytes, room_bytes)
    batch = batch_of(recording, [], by_tensors=True)
    return combined(recording, batch, room, is_checkpointed=False)


@pytest.fixture(scope="module")
def plain():
    return trained(GIVEN).recording()


def test_a_batch_is_told_by_tokens_where_no_argument_says_it(plain):
    assert batch_of(plain, []) is None
    assert batch_of(plain, [], by_tensors=True).given == GIVEN
    named = batch_of(plain, [Argument("batch", GIVEN)], by_tensors=True)
    assert (named.names, named.given) == (("batch",), GIVEN)


def test_checkpointed_blocks_take_little_more_than_a_run_with_them_does(plain):
    really = held_bytes(trained(GIVEN, checkpoints=True))
    found = told(plain, int(really * 1.2))
    assert (found.changes, found.num) == ((CHECKPOINTED,), GIVEN)
    assert really <= found.reserved_bytes <= 1.2 * really


def test_less_room_takes_both_and_then_a_smaller_batch(plain):
    sizes = []
    for room_bytes in range(120 * MIB, 400 * MIB, 20 * MIB):
        if found := told(plain, room_bytes):
            sizes.append(found.num)
            assert found.reserved_bytes <= room_bytes
            if found.num < GIVEN:
                assert found.changes == (CHECKPOINTED, ROUNDED)
    assert sizes == sorted(sizes)
    assert sizes[0] < GIVEN == sizes[-1]
    assert told(plain, MIB) is None


def test_what_makes_a_batch_little_larger_is_not_told(plain):
    room = Room(NATIVE, 400 * MIB, 400 * MIB)
    batch = batch_of(plain, [], by_tensors=True)
    assert 0 < most_of(plain, batch, room) < GIVEN
    assert combined(plain, batch, room, is_checkpointed=True) is None


def test_of_changes_that_do_alike_the_one_is_told_that_changes_nothing_that_is_learnt():
    def updated(*, fused):
        with pretend.gpu("t4") as run:
            table = nn.Embedding(20_000, WIDTH).cuda()
            optimizer = torch.optim.Adam(table.parameters(), fused=fused, foreach=not fused)
            for _ in range(2):
                ids = torch.randint(0, 1000, (GIVEN, 16), device="cuda")
                table(ids).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return run

    listed, really = updated(fused=False), held_bytes(updated(fused=True))
    assert really < held_bytes(listed)
    found = told(listed.recording(), really)
    assert (found.changes, found.num) == ((FUSED,), GIVEN)
    assert found.reserved_bytes == really
