"""A job file is the flags of a command, written down."""

import pytest

from brimful.cli.job_file import expand
from brimful.cli.main import JOB_VERBS, parser_of
from brimful.errors import FileFormatError, UnknownNameError


def others():
    return [parser_of(verb) for verb in JOB_VERBS]


def spell(tmp_path, text, *more, verb="plan"):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return expand([str(path), *more], parser_of(verb), others)


def test_keys_are_flags_and_the_command_line_wins(tmp_path):
    arguments = spell(tmp_path, "model: tiny\nglobal_batch: 8\nac: full", "--global-batch", "4")
    assert arguments == ["tiny", "--global-batch=8", "--ac=full", "--global-batch", "4"]
    assert parser_of("plan").parse_args(arguments).global_batch == 4


def test_each_verb_takes_what_it_knows(tmp_path):
    text = "model: tiny\nobjective: memory\nphases: save"
    assert spell(tmp_path, text) == ["tiny", "--objective=memory"]
    assert spell(tmp_path, text, verb="simulate") == ["tiny", "--phases=save"]


def test_lists_switches_and_nothing_are_spelt_as_they_would_be_typed(tmp_path):
    text = "model: m\nlora_targets: [q_proj, v_proj]\njson: true\nseed: null"
    assert spell(tmp_path, text) == ["m", "--lora-targets=q_proj,v_proj", "--json"]


def test_a_plan_is_no_job_file(tmp_path):
    assert spell(tmp_path, "schema: brimful.plan/2\njob: {}\n")[0].endswith("job.yaml")


def test_a_model_that_is_no_yaml_is_left_alone():
    assert expand(["llama", "--json"], parser_of("plan"), others) == ["llama", "--json"]


def test_an_unknown_key_names_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'globl-batch'.*global-batch"):
        spell(tmp_path, "model: m\nglobl_batch: 8")


@pytest.mark.parametrize("line", ["json: 3", "seed: true", "weights: {deep: {er: 1}}"])
def test_a_value_that_no_flag_takes_is_refused(tmp_path, line):
    with pytest.raises((FileFormatError, UnknownNameError), match="job"):
        spell(tmp_path, f"model: m\n{line}")


def test_every_option_of_a_recipe_can_be_written_down(tmp_path):
    text = (
        "model: m\nprecision: fp16-mixed\nkeep_fp32: [norm, lm_head]\ninitial_scale: 1024\n"
        "growth_factor: 4\nbackoff_factor: 0.25\ngrowth_interval: 100\n"
    )
    flags = ("--keep-fp32=norm,lm_head", "--initial-scale=1024", "--growth-factor=4",
        "--backoff-factor=0.25", "--growth-interval=100")  # fmt: skip
    for verb in ("estimate", "plan", "simulate", "train"):
        assert set(flags) <= set(spell(tmp_path, text, verb=verb)), verb
