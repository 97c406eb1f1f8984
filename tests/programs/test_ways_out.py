"""What would fit of a command line of Megatron-LM that does not."""

import itertools
import json

from brimful.cli.main import main
from brimful.programs.base import shortened
from brimful.programs.formulas import Machines, predict_program
from brimful.programs.ways_out import MOST_TOLD, ways_out

LINE = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --vocab-size 32000 --swiglu --disable-bias-linear "
    "--normalization RMSNorm --hidden-dropout 0 --attention-dropout 0 --train-iters 100 "
    "--micro-batch-size 16 --position-embedding-type rope "
)
CARD = Machines("rtx-4090")
STATES = LINE.replace("--micro-batch-size 16", "--micro-batch-size 1").replace("8 --hi", "32 --hi")


def words(way):
    return " ".join(way.flags)


def as_changed(line, way):
    flags = [word for word in way.flags if word.startswith("--")]
    return f"{shortened(line, flags)} {words(way)}"


def test_what_is_named_fits_when_it_is_asked_and_is_as_fast_as_is_said():
    assert any(rank.word == "no" for rank in predict_program(LINE, 8, CARD).ranks)
    ways = ways_out(LINE, 8, CARD)
    assert 1 < len(ways) <= MOST_TOLD
    speeds = [way.predicted_tokens_per_s for way in ways]
    assert speeds == sorted(speeds, reverse=True)
    for way in ways:
        found = predict_program(as_changed(LINE, way), 8, CARD)
        assert {rank.word for rank in found.ranks} == {"fits"}
        most = max(rank.predicted_peak_reserved_bytes for rank in found.ranks)
        assert most == way.predicted_peak_reserved_bytes
        assert found.predicted_tokens_per_s == way.predicted_tokens_per_s


def test_the_global_batch_stays_what_it_was():
    assert all("--global-batch-size 128" in words(way) for way in ways_out(LINE, 8, CARD))
    said = f"{LINE} --global-batch-size 256"
    assert not any("--global-batch-size" in words(way) for way in ways_out(said, 8, CARD))


def test_of_one_thing_the_fastest_value_is_named():
    ways = ways_out(LINE, 8, CARD)
    changed = [{word for word in way.flags if word.startswith("--")} for way in ways]
    assert all(one != other for one, other in itertools.pairwise(changed))


def test_states_are_sharded_where_they_are_what_lacks_room():
    ways = ways_out(STATES, 8, CARD)
    assert any("--use-distributed-optimizer" in words(way) for way in ways)
    sharded = f"{STATES} --use-distributed-optimizer"
    again = ways_out(sharded, 8, CARD)
    assert not any("--use-distributed-optimizer" in words(way) for way in again)


def test_several_things_are_changed_where_one_is_not_enough():
    ways = ways_out(STATES.replace("32 --hi", "64 --hi"), 4, CARD)
    assert ways
    assert all(len([word for word in way.flags if word.startswith("--")]) > 2 for way in ways)


def test_nothing_is_named_where_nothing_fits():
    assert not ways_out(STATES, 1, CARD)


def test_megatron_deepspeed_is_told_in_its_own_words():
    line = f"{LINE} --deepspeed --zero-stage 1".replace("-size 16", "-size 1")
    told = " ".join(words(way) for way in ways_out(line, 1, CARD))
    assert "--checkpoint-activations" in told
    assert "--recompute" not in told
    assert "--context" not in told


def test_a_no_says_what_would_fit_and_what_that_run_costs(capsys):
    assert main(["estimate", "--gpus", "8xrtx-4090", "--from", LINE]) == 1
    out = capsys.readouterr().out
    assert out.startswith("NO")
    assert "would fit --" in out
    assert "or with" in out
    assert "with the first of these" in " ".join(out.split())
    assert len(out.splitlines()) <= 12
    assert main(["estimate", "--gpus", "8xrtx-4090", "--from", LINE, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ways_out"][0]["predicted_peak_reserved_bytes"] < told["ranks"][0]["capacity_bytes"]


def test_a_run_has_its_tokens_where_no_time_is_known(capsys):
    line = (
        "pretrain_t5.py --encoder-num-layers 3 --decoder-num-layers 3 --hidden-size 768 "
        "--num-attention-heads 12 --ffn-hidden-size 3072 --encoder-seq-length 512 --bf16 "
        "--decoder-seq-length 128 --max-position-embeddings 512 --micro-batch-size 4 "
        "--global-batch-size 32 --vocab-extra-ids 100 --tokenizer-type BertWordPieceCase"
    )
    assert main(["estimate", "--gpus", "8xh100", "--from", line, "--tokens", "1e6", "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    num_steps = -(-(10**6) // (32 * (512 + 128)))
    assert (cost["num_steps"], cost["num_tokens"]) == (num_steps, num_steps * 32 * (512 + 128))
    assert cost["hours"] is None


def test_what_fits_needs_no_way_out(capsys):
    assert main(["estimate", "--gpus", "8xh200", "--from", LINE]) == 0
    out = capsys.readouterr().out
    assert "would fit" not in out
    assert "100 steps" in out
