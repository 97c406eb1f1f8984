"""Which tests `make test` leaves to `make test-all`: cases of long parameter lists, and long runs.

``KEPT_ONE_IN`` thins the cases of a parameter, by file or by function; of every function at least
one case is run. ``LONG`` lists functions that are run with all cases only: what they check is
checked in the sample by a shorter relative, or is evidence that ``make prove`` makes anew. Names
decide, not chance, so that processes agree and a failure comes again.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

KEPT_ONE_IN = {
    "build/test_alone.py::test_its_peak_is_that_of_the_simulation": 3,
    "build/test_decoders.py": 3,
    "build/test_exactness.py::test_every_strategy_takes_the_steps_of_the_plain_loop": 4,
    "build/test_first_state.py::test_devices_that_keep_a_part_each_make_the_same_part": 4,
    "build/test_first_state.py::test_no_bit_differs_from_state_that_is_made_lazily": 7,
    "build/test_low_bit.py::test_it_is_torchao_s_own_to_the_bit": 2,
    "build/test_parallel.py::test_shards_of_gradients_are_there_when_they_are_reduced": 3,
    "build/test_tasks.py::test_every_strategy_takes_the_steps_of_the_plain_loop": 3,
    "build/test_tensor_parallel.py::test_steps_are_those_of_one_device": 3,
    "build/test_weights.py::test_loading_holds_the_model_once_and_one_piece_beside_it": 2,
    "cost/test_adapted.py": 6,
    "cost/test_other_architectures.py": 4,
    "cost/test_published_adapters.py::test_the_prediction_is_the_simulation": 9,
    "cost/test_spread.py::test_the_prediction_is_the_simulation": 6,
    "cost/test_stages.py::test_every_device_of_a_row_takes_what_its_simulation_takes": 4,
    "cost/test_update.py::test_the_prediction_is_the_simulation": 5,
    "examples/test_examples.py::test_an_example_fits_a_card_and_not_a_budget_below_its_peak": 2,
    "examples/test_jobs.py::test_a_chat_model_is_made_of_it": 3,
    "launch/test_out_of_memory.py::test_of_two_processes_all_start_again": 5,
    "measure/test_inference.py::test_every_phase_takes_what_was_simulated": 4,
    "measure/test_limit.py::test_just_over_the_simulated_peak_passes_and_just_under_does_not": 2,
    "pretend/test_fsdp.py": 3,
    "pretend/test_programs.py": 4,
    "pretend/test_unroll.py::test_blocks_unroll_to_the_whole_model": 4,
    "search/test_solve.py::test_the_optimum_is_that_of_trying_everything": 3,
    "simulate/test_adapters.py": 6,
    "simulate/test_attention_kernels.py": 6,
    "simulate/test_chosen.py::test_a_simulation_says_the_same_either_way": 2,
    "simulate/test_chosen.py::test_what_is_filled_in_is_what_would_have_been_recorded": 6,
    "simulate/test_decoders.py": 8,
    "simulate/test_fp8.py::test_shards_are_simulated": 4,
    "simulate/test_fp8.py::test_the_simulated_peak_is_the_measured_one": 3,
    "simulate/test_kept.py::test_the_simulated_peak_is_the_measured_one": 4,
    "simulate/test_optimizers.py": 6,
    "simulate/test_optimizers.py::test_every_recipe_traces_with_every_rule": 24,
    "simulate/test_pipeline.py::test_each_stage_keeps_as_many_micro_batches_as_the_replay_says": 3,
    "simulate/test_qat.py::test_the_simulated_peak_is_the_measured_one": 3,
    "simulate/test_tasks.py": 6,
    "simulate/test_unrolled.py": 5,
    "watch/test_hf_trainer.py::test_the_peak_is_that_of_the_same_trainer_on_the_pretend_gpu": 3,
}
_LONG = {
    "benchmarks/test_gpu_run.py": ("test_other_trainers_do_the_same_work_or_say_why_not",),
    "launch/test_out_of_memory.py": (
        "test_where_nothing_is_left_it_says_so_and_keeps_no_strategy_twice",
    ),
    "pretend/test_unroll.py": (
        "test_blocks_then_micro_batches_then_steps_unroll",
        "test_blocks_unroll_in_a_hybrid_mesh_with_several_micro_batches",
    ),
    "simulate/test_pipeline.py": ("test_without_a_rank_it_is_the_fullest_place_of_the_row",),
    "simulate/test_search.py": ("test_under_a_limit_it_finds_what_the_formulas_find",),
    "validation/test_fp8.py": ("test_each_process_takes_what_its_rank_takes_in_simulation",),
    "validation/test_groups.py": (
        "test_a_checkpoint_goes_on_in_another_layout",
        "test_a_planted_expert_is_named_and_each_device_takes_what_its_routing_takes",
        "test_each_stage_takes_what_it_takes_in_simulation",
        "test_parted_experts_say_what_they_say_in_simulation",
    ),
    "validation/test_kept.py": ("test_each_process_takes_what_its_rank_takes_in_simulation",),
    "validation/test_moonshot.py": ("test_the_small_run_is_made_again",),
    "validation/test_peers_part.py": ("test_both_trainers_learn_the_same_in_the_same_memory",),
    "validation/test_recipes_part.py": ("test_an_example_is_compared_as_it_is",),
    "validation/test_techniques_part.py": (
        "test_every_possible_pair_of_techniques_is_in_a_cell",
        "test_weights_from_a_folder_are_simulated_and_run_in_a_process_without_the_tape",
    ),
    "watch/test_hf_trainer.py": ("test_what_brimfuls_own_loop_has_not_is_not_predicted",),
}
LONG = frozenset(f"{file}::{name}" for file, names in _LONG.items() for name in names)


def sample(names: Sequence[str]) -> set[str]:
    """Choose which tests are run.

    Args:
        names: ``file::function[case]``, files from the folder of the tests.
    """
    by_function: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_function[name.partition("[")[0]].append(name)
    return {
        name
        for function, own in by_function.items()
        if function not in LONG
        for name in _thinned(own, _one_in(function))
    }


def _one_in(function: str) -> int:
    file = function.partition("::")[0]
    return KEPT_ONE_IN.get(function, KEPT_ONE_IN.get(file, 1))


def _thinned(names: Iterable[str], one_in: int) -> Iterable[str]:
    """Keep some cases, one at least; what has no cases stays."""
    ordered = sorted(names, key=lambda name: zlib.crc32(name.encode()))
    kept = [name for name in ordered if zlib.crc32(name.encode()) % one_in == 0]
    return kept or ordered[:1]
