"""The end of a run: what it came to, and its model handed over."""

from brimful.train.handover import hand_over
from brimful.train.memory import peak_bytes
from brimful.train.metering import NUM_METERED_STEPS
from brimful.train.metrics import read_metrics, without_experts
from brimful.train.result import TrainResult
from brimful.train.run_state import Run
from brimful.train.tally import median_or_none
from brimful.train.world import is_first, told_by_first
from brimful.values.run_files import METRICS_FILE, MODEL, RestartRow, TakeoverRow, TrainRow


def finish(run: Run, last_step: int, *, is_asked: bool) -> TrainResult:
    """Hand over what was trained, and add the run up."""
    known = read_metrics(run.settings.out / METRICS_FILE) if is_first() else ()
    rows = told_by_first(without_experts(known))
    # Steps before were metered, or of another strategy.
    metered = run.last_metered if run.last_metered >= run.first_step else 0
    last_odd = max(NUM_METERED_STEPS, metered)
    steady = [r for r in rows if isinstance(r, TrainRow) and r.step > last_odd]
    median_step_s = median_or_none(row.step_s for row in steady)
    last, best = run.tally.last_eval, run.tally.best_eval
    interrupted = last_step < run.plan.job.num_steps
    peak = peak_bytes(run.program.device)
    model = None if interrupted or not run.settings.keeps_model else run.settings.out / MODEL
    if model is not None:
        hand_over(
            run.program,
            tokenizer_path=run.data.tokenizer_path,
            folder=model,
            merged=run.settings.merge,
        )
    return TrainResult(
        num_steps=last_step,
        resumed_from=run.first_step - 1,
        interrupted=interrupted,
        asked_to_stop=is_asked,
        num_targets=run.tally.num_targets,
        num_skipped=run.tally.num_skipped,
        final_loss=run.tally.last_loss,
        heldout_loss=last.heldout_loss if last else None,
        perplexity=last.perplexity if last else None,
        accuracy=last.accuracy if last else None,
        best_heldout_loss=best.heldout_loss if best else None,
        best_step=best.step if best else None,
        unigram_entropy=run.data.summary.unigram_entropy,
        median_step_s=median_step_s,
        padded_tokens_per_s=run.plan.job.tokens_per_step / median_step_s if median_step_s else None,
        median_mfu=median_or_none(row.mfu for row in steady),
        peak_bytes=peak,
        model=model,
        num_takeovers=sum(isinstance(row, TakeoverRow) for row in rows),
        num_restarts=sum(isinstance(row, RestartRow) for row in rows),
        measured_peak_bytes=run.measured_peak_bytes,
        is_process=run.program.device.type == "cpu",
    )
