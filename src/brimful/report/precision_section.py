"""The part of the page about precision: what is held in which type, and what went wrong with it."""

from brimful.cost.recipes import RECIPES
from brimful.report.run_folder import RunFolder
from brimful.show import markup
from brimful.show.markup import Html
from brimful.values.job import Job, LossScale

_FORWARD = {
    "fp32": "fp32",
    "tf32": "fp32, products in TF32 where the device has it",
    "bf16": "bf16",
    "fp16": "fp16",
    "bf16-mixed": "autocast to bf16",
    "fp16-mixed": "autocast to fp16",
    "bf16-master": "bf16",
    "fp16-master": "fp16",
    "fp8": "autocast to bf16, linear layers in fp8",
}
"""What products are computed in."""


def precision_section(folder: RunFolder) -> Html:
    """Say what each tensor is held in, and how often that was not enough."""
    job = folder.plan.job
    return markup.pairs([*_held(job), *_seen(folder)])


def _held(job: Job) -> list[tuple[str, str]]:
    recipe = RECIPES[job.precision]
    rows = [
        ("recipe", job.precision),
        ("computed in", _FORWARD[job.precision]),
        ("trained parameters", f"{recipe.parameter} bytes each"),
        ("gradients", f"{recipe.gradient} bytes each"),
        ("fp32 masters", f"{recipe.master} bytes each" if recipe.master else "none"),
        ("optimizer", job.optimizer),
    ]
    if job.adapter is not None:
        rows.append(("frozen base", job.adapter.base))
    if job.keep_fp32:
        rows.append(("kept in fp32", ", ".join(job.keep_fp32)))
    if job.loss_scale is not None:
        rows.append(("loss scale", _scale_words(job.loss_scale)))
    return rows


def _scale_words(scale: LossScale) -> str:
    return (
        f"begins at {scale.initial_scale:g}, x {scale.growth_factor:g} after "
        f"{scale.growth_interval} good steps, x {scale.backoff_factor:g} after an overflow"
    )


def _seen(folder: RunFolder) -> list[tuple[str, str]]:
    rows = folder.train_rows
    if not rows:
        return []
    not_finite = sum(row.loss is None for row in rows)
    return [
        ("steps skipped", f"{sum(row.skipped for row in rows)} of {len(rows)}"),
        ("losses not finite", f"{not_finite} of {len(rows)}"),
    ]
