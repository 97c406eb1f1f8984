"""What is said at once of a job whose profile has yet to be traced."""

import json
import re

import pytest

from brimful.cli import on_demand
from brimful.cli.least import least_words, spread_whole, tell_least
from brimful.cli.resolved import Asked
from brimful.cost.least import Least, Spread, blocks_away_bytes, least_bytes
from brimful.models.config import exact_count, find_unread
from brimful.units import format_bytes
from samples import TRACED_PHI, make_cluster, make_job, make_strategy

GPT_OSS = ("gpt-oss-20b", "--gpus", "h100-80gb", "--attention", "eager")


@pytest.fixture(autouse=True)
def nothing_is_shipped(tmp_path, monkeypatch):
    """Answers where nothing was traced: what is shipped of this model is out of sight."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "traced"))
    monkeypatch.setattr("brimful.files.traced.shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setattr("brimful.models.traced._known", {})
    monkeypatch.setattr("brimful.cost.profiles._own", {})


@pytest.fixture
def untraced(monkeypatch):
    """Tracing ends the test."""

    def trace(*_args: object) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr(on_demand, "_trace", trace)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(("verb", "flags"), [("plan", ("--offload", "none")), ("estimate", ())])
def test_states_without_room_are_a_no_at_once(brimful, verb, flags):
    said = brimful(verb, *GPT_OSS, *flags)
    assert said.code == 1
    assert said.out.startswith("NO  ")
    assert "311.65 GiB of 78.45 GiB" in said.out
    assert "needs     4 of these GPUs or more" in said.out
    assert "--method lora holds 39.08 GiB" in said.out


def test_states_without_room_are_a_no_at_once_where_settings_would_be_simulated(brimful):
    """Nothing is kept on the host there: a minute of simulating ended in UNKNOWN."""
    ask = ("plan", "HuggingFaceTB/SmolLM3-3B", "--method", "qat", "--qat-scheme", "int4")
    said = brimful(*ask, "--gpus", "a100-40gb", "--seq-len", 2048)
    assert (said.code, said.out[:2]) == (1, "NO")
    assert "45.82 GiB of 38.73 GiB" in said.out
    ways = ("or with   --offload optimizer", "or allow  --precision bf16 holds 22.91 GiB")
    places = [said.out.index(way) for way in (*ways, "instead   --gpus ")]
    assert places == sorted(places)
    assert len(said.out.splitlines()) <= 12


@pytest.mark.usefixtures("untraced")
def test_a_larger_gpu_and_what_packed_experts_would_take_are_named(brimful):
    ask = ("plan", "gpt-oss-20b", "--gpus", "rtx-3090", "--method", "qlora", "--attention", "eager")
    said = " ".join(brimful(*ask).out.split())
    assert "35.61 GiB of all together (9.20 GiB if packed too)" in said
    assert "if packed" in said
    assert "in all, by a loader that packs experts" in said
    # 24 blocks x 32 experts x 3 x 2880 x 2880 numbers of half a byte, and their scales
    assert 24 * 32 * 3 * 2880**2 / 2 / 2**30 < 9.20
    assert "--gpus l40 leaves 4.35 GiB for activations" in said


@pytest.mark.usefixtures("untraced")
def test_one_s_own_card_comes_first_where_it_would_hold_packed_experts(brimful):
    ask = ("plan", "gpt-oss-20b", "--method", "qlora", "--attention", "eager", "--seq-len", 2048)
    said = " ".join(brimful(*ask, "--gpus", "rtx-4060-ti-16gb").out.split())
    assert re.search(r"if packed 11.78 GiB at least in all.*: your rtx-4060-ti-16gb would", said)
    assert "would have 3.14 GiB left for activations" in said
    said = " ".join(brimful(*ask, "--gpus", "rtx-3060").out.split())
    assert re.search(r"if packed 11.78 GiB at least in all.*: --gpus \S+ would leave", said)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(
    "flags",
    [
        ("--method", "lora"),
        ("--gpus", "8xh100-80gb", "--method", "lora", "--zero", 1),
    ],
)
def test_states_with_room_are_traced(brimful, flags):
    with pytest.raises(AssertionError, match="traced"):
        brimful("plan", *GPT_OSS, *flags)


@pytest.mark.torch
@pytest.mark.usefixtures("untraced")
def test_experts_that_are_not_packed_are_seen_before_anything_is_traced(brimful):
    said = brimful("estimate", "gemma-4-26b-a4b", "--gpus", "rtx-3090", "--method", "qlora")
    assert (said.code, said.out[:2]) == (1, "NO")
    assert "parameters 44.79 GiB" in said.out


@pytest.mark.usefixtures("untraced")
def test_what_may_be_on_the_host_is_no_reason_for_a_no(brimful):
    with pytest.raises(AssertionError, match="traced"):
        brimful("plan", *GPT_OSS)
    said = brimful("plan", *GPT_OSS, "--gpus", "rtx-4090", "--method", "lora")
    assert (said.code, said.out[:2]) == (1, "NO")


@pytest.mark.usefixtures("untraced")
def test_what_is_whole_on_each_is_counted_whole(brimful):
    alone = ("--tp", 1, "--pp", 1, "--ep", 1)
    said = brimful("plan", *GPT_OSS, "--gpus", "8xh100-80gb", "--zero", 0, *alone)
    assert (said.code, said.out[:2]) == (1, "NO")
    said = brimful("estimate", *GPT_OSS, "--gpus", "8xh100-80gb", "--zero", 1)
    assert (said.code, said.out[:2]) == (1, "NO")
    said = brimful("plan", *GPT_OSS, "--gpus", "2xa100-40gb")
    assert (said.code, said.out[:2]) == (1, "NO")


def test_a_model_that_takes_long_to_read_is_told_of_first():
    assert find_unread("gemma-3-12b") == ("gemma-3-12b", "gemma3_text", 11766034176)
    assert find_unread("zai-org/GLM-4.5-Air") is not None
    assert find_unread("llama-3.1-8b") is None
    assert find_unread("no-such-model") is None
    assert find_unread("no/such/folder") is None


@pytest.mark.torch
def test_what_it_takes_at_least_stands_before_the_trace(brimful, folder, monkeypatch):
    (folder / "phi.json").write_text(json.dumps(TRACED_PHI))
    flags = ("--gpus", "a100-40gb", "--seq-len", 512, "--ac", "none", "--loss-chunks", 1)
    monkeypatch.setattr(on_demand, "TOLD_EVERY_S", 0.0)
    told = brimful("plan", "phi.json", *flags, "--no-proof").err.splitlines()
    assert "a profile of phi.json is traced here, once" in told[0]
    assert any("plain blocks, 1 of 1 programs" in line for line in told)


@pytest.mark.torch
def test_bodies_that_were_traced_stay_when_it_is_interrupted(brimful, folder, monkeypatch):
    from brimful.simulate import on_demand as simulated

    (folder / "phi.json").write_text(json.dumps(TRACED_PHI))
    flags = ("--gpus", "a100-40gb", "--seq-len", 512, "--loss-chunks", 1, "--micro-batch", 1)
    flags = (*flags, "--no-proof", "--pareto")
    made, trace = list[tuple[str, ...]](), simulated.with_variants

    def interrupted(known, own, wanted, formulas, earlier):
        if made:
            raise KeyboardInterrupt
        made.append((own.program.recompute, *wanted))
        return trace(known, own, wanted, formulas, earlier)

    monkeypatch.setattr(simulated, "with_variants", interrupted)
    assert brimful("plan", "phi.json", *flags).code == 130
    later: list[tuple[str, ...]] = []

    def again(known, own, wanted, formulas, earlier):
        later.append((own.program.recompute, *wanted))
        return trace(known, own, wanted, formulas, earlier)

    monkeypatch.setattr(simulated, "with_variants", again)
    assert brimful("plan", "phi.json", *flags).code == 0
    assert not set(made) & set(later), (made, later)


def test_what_the_host_may_take_is_not_said_to_be_nothing():
    """All three are counted; what stays where the host takes the rest is said beside."""
    least = Least(4 * 2**30, 4 * 2**30, 8 * 2**30)
    spread = Spread(2, parameters=2, gradients=2, optimizer_state=2, is_offloaded=True)
    told = least_words(least, spread, 7 * 2**30)
    assert "optimizer state take 8.00 GiB of 7.00 GiB on each GPU at least" in told
    assert "2.00 GiB with only the parameters there and the rest on the host" in told
    assert "on the host" not in least_words(least, spread, 9 * 2**30)
    assert "on the host" not in least_words(least, spread._replace(is_offloaded=False), 7 * 2**30)


def test_only_what_is_counted_is_named():
    spread = Spread(1, parameters=1, gradients=1, optimizer_state=1)
    told = least_words(Least(4 * 2**30, 0, 0), spread, 7 * 2**30)
    assert told.startswith("parameters take 4.00 GiB of 7.00 GiB on the GPU at least")


def test_gradients_that_are_dropped_as_they_come_are_not_among_the_least(capsys):
    job, cluster = make_job(), make_cluster("cuda")
    for is_early, named in ((False, "parameters, gradients and"), (True, "parameters and")):
        strategy = make_strategy(optimizer_in_backward=is_early)
        tell_least(Asked(job, cluster, strategy), spread_whole(1))
        assert capsys.readouterr().err.startswith(f"{named} optimizer state take "), is_early


@pytest.mark.parametrize(
    ("offload", "counted"),
    [
        ("activations:1", "parameters, gradients and optimizer state"),
        ("optimizer", "parameters"),
        ("parameters:1", "parameters"),
    ],
)
def test_what_is_offloaded_is_not_among_the_least(capsys, offload, counted):
    """An answer of 34.89 GiB stood below 65.71 GiB on each GPU at least."""
    job, cluster = make_job(), make_cluster("cuda")
    tell_least(Asked(job, cluster, make_strategy(offload=offload)), spread_whole(1))
    said = capsys.readouterr().err
    assert said.startswith(f"{counted} that are not offloaded take ")
    least = least_bytes(job, exact_count(job.model))
    away = blocks_away_bytes(job, least, offload)
    assert (away > 0) == (offload == "parameters:1")
    beside = 0 if counted == "parameters" else least.gradients + least.optimizer_state
    kept = least.parameters - away + beside
    assert f" take {format_bytes(kept)} of " in said


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("torch_is_here", [True, False])
def test_a_method_is_not_offered_whose_experts_stay_in_16_bits(brimful, monkeypatch, torch_is_here):
    if not torch_is_here:
        monkeypatch.setattr("brimful.cli.least.find_spec", lambda _: None)
    ask = ("plan", "granite-4.0-h-tiny", "--gpus", "rtx-4070", "--seq-len", 1024)
    said = brimful(*ask, "--method", "lora")
    assert "short by 2.30 GiB" in said.out
    assert "qlora" not in said.out  # 11.95 GiB of 10.63 GiB as that command holds them
    if torch_is_here:
        assert brimful(*ask, "--method", "qlora").out.startswith("NO ")


def test_a_model_of_speech_is_answered_by_its_states(brimful):
    asked = ("plan", "openai/whisper-large-v3", "--precision", "fp16-mixed")
    said = brimful(*asked, "--gpus", "v100-16gb", "--global-batch", "16")
    assert said.code == 1
    assert "NO        full training of whisper-large-v3 on 1 x V100" in said.out
    assert "1.54B parameters, 16 bytes each" in said.out
    assert "--optimizer adamw-8bit 14.42 GiB" in said.out
    assert "brimful pretend --gpu v100-16gb" in " ".join(said.out.split())
    assert len(said.out.splitlines()) <= 12
    room = brimful(*asked, "--gpus", "a100-80gb")
    assert (room.code, room.out.split()[0]) == (2, "UNKNOWN")
