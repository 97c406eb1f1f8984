"""What would raise the largest batch that fits, beside runs of the program that has it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from brimful import pretend
from brimful.allocator.config import parse_settings
from brimful.allocator.held import held_of
from brimful.pretend.combined import CHECKPOINTED
from brimful.pretend.proportion import Argument, Room, batch_of
from brimful.pretend.raising import ATTENTION, CHUNKED, raised

pytestmark = pytest.mark.torch

WIDTH, TOKENS, DEPTH, GIVEN, WORDS = 128, 256, 4, 6, 4096
NATIVE = parse_settings("")


class Block(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, fused):
        q, k, v = self.qkv(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        if fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


def trained(batch, *, heads=8, fused=False, checkpoints=False):
    with pretend.gpu("t4") as run:
        words = nn.Embedding(WORDS, WIDTH).cuda()
        blocks = nn.ModuleList(Block(heads) for _ in range(DEPTH)).cuda()
        head = nn.Linear(WIDTH, WORDS).cuda()
        parameters = [*words.parameters(), *blocks.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for _ in range(2):
            ids = torch.randint(0, WORDS, (batch, TOKENS), device="cuda")
            x = words(ids)
            for block in blocks:
                x = (
                    checkpoint(block, x, fused, use_reentrant=False)
                    if checkpoints
                    else block(x, fused)
                )
            nn.functional.cross_entropy(head(x).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run.recording()


def held_bytes(recording):
    requests = recording.requests()
    return held_of(requests, settings=NATIVE, capacity_bytes=None).peak_reserved_bytes


def told(recording, room_bytes, *, is_checkpointed=False):
    batch = batch_of(recording, [Argument("batch", GIVEN)])
    room = Room(NATIVE, room_bytes, room_bytes)
    found = raised(recording, batch, room, is_checkpointed=is_checkpointed)
    return {way.change: way for way in found}


def test_attention_that_is_written_out_is_named_with_what_it_takes():
    plain = trained(GIVEN)
    found = told(plain, held_bytes(plain))[ATTENTION]
    scores = GIVEN * 8 * TOKENS * TOKENS * 4
    assert found.num_bytes >= DEPTH * scores
    assert held_bytes(trained(found.num, fused=True)) == pytest.approx(held_bytes(plain), rel=0.15)


def test_what_does_most_comes_first_and_what_a_program_has_is_not_named():
    plain = trained(GIVEN, fused=True)
    ways = told(plain, held_bytes(plain))
    assert ATTENTION not in ways
    assert next(iter(ways)) == CHUNKED
    assert ways[CHUNKED].num > GIVEN
    again = trained(GIVEN, checkpoints=True)
    assert CHECKPOINTED not in told(again, held_bytes(again), is_checkpointed=True)
