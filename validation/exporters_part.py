"""Exports handed to the real parsers of their targets, in environments of their own; some are run.

What a parser read back is compared with what the plan says, which is spelled here a second time,
apart from the exporters. On CPUs there is no Slurm: its script is read by ``bash -n`` and by its
``#SBATCH`` lines, and by no ``sbatch``.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cases import Case
from evidence import Refusal, Summary, describe_case, relative, spread_of
from exporters_plans import AC, GIVEN, SUFFIXES, Planned, plans, sha256
from exporters_rows import ExporterRow, ReadBack
from exporters_site import execute, parse, sites
from exporters_trainers import meant_axolotl, meant_llama_factory, meant_trl
from peer_site import Site, make_site
from peer_worker import Request, ask
from sampler import cluster_of
from small_llama import SMALL_LLAMA

from brimful.errors import RunError, UnsupportedError
from brimful.export import TARGETS
from brimful.export.given import Exported
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job, plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Strategy, num_micro_batches, world_size

LOSS_BAR = 1e-5
NUM_STEPS = 3
PARSED_BY = {
    "deepspeed": "deepspeed.runtime.config.DeepSpeedConfig",
    "accelerate": "load_config_from_file and accelerate launch's own validation",
    "hf-trainer": "HfArgumentParser(TrainingArguments).parse_yaml_file; bf16 units not asked for",
    "torchtitan": "torchtitan.config.manager.ConfigManager",
    "trl": "trl.TrlParser; bf16 units not asked for",
    "axolotl": "axolotl.utils.schemas.config.AxolotlInputConfig",
    "llama-factory": "llamafactory.hparams.parser._parse_train_args; bf16 units not asked for",
    "torchrun": "torch.distributed.run.get_args_parser",
    "slurm": "bash -n, and its #SBATCH lines; no sbatch",
}
_EXECUTED = ("deepspeed", "accelerate", "hf-trainer")


def run(*, seed: int, quick: bool) -> tuple[list[ExporterRow], Summary]:
    """Export, parse, run; nothing is drawn but the seed of the weights."""
    with sites() as site:
        rows = [row for target in TARGETS for row in _parsed(site, target, quick=quick)]
        rows += _executed(site, seed=seed, quick=quick)
    return rows, summarize(rows)


def _parsed(site: Path, target: str, *, quick: bool) -> Iterator[ExporterRow]:
    chosen = plans()[:3] if quick else plans()
    with tempfile.TemporaryDirectory() as temporary:
        folder, exported = Path(temporary), {}
        refused: dict[str, str] = {}
        for planned in chosen:
            try:
                exported[planned.name] = TARGETS[target](planned.plan, GIVEN)
            except UnsupportedError as error:
                refused[planned.name] = str(error)
        kept = [planned for planned in chosen if planned.name in exported]
        asks = []
        for planned in kept:
            file = f"{planned.name}.{SUFFIXES[target]}"
            (folder / file).write_text(exported[planned.name].text)
            world = planned.plan.strategy.dp_replicate * planned.plan.strategy.dp_shard
            asks.append({"file": file, "world": world})
        answer = parse(site, target, folder, asks)
    told = dict(zip([planned.name for planned in kept], answer["told"], strict=True))
    for planned in chosen:
        yield _row(
            planned, target, answer["versions"], exported.get(planned.name),
            told.get(planned.name, {"values": {}, "complaint": ""}), refused.get(planned.name, ""),
        )  # fmt: skip


def _row(  # noqa: PLR0913, PLR0917 - the columns of a row
    planned: Planned,
    target: str,
    versions: Sequence[str],
    exported: Exported | None,
    told: dict[str, Any],
    refused: str,
) -> ExporterRow:
    plan = planned.plan
    meant = MEANT[target](plan) if exported is not None else {}
    values = tuple(
        ReadBack(name=name, meant=_spell(value), read=_spell(told["values"].get(name)))
        for name, value in meant.items()
    )
    lost = exported.lost if exported is not None else ()
    return ExporterRow(
        case=Case(job=plan.job, strategy=plan.strategy, kernels="cuda"),
        devices=planned.gpus,
        target=target,
        versions=tuple(versions),
        parser=PARSED_BY[target],
        refused=refused,
        sha256=sha256(exported.text) if exported is not None else "",
        values=values,
        complaint=told["complaint"],
        lost=tuple(f"{each.field} ({each.changes})" for each in lost),
    )


def _spell(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_spell, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value)


def _meant_deepspeed(plan: Plan) -> dict[str, Any]:
    job, strategy = plan.job, plan.strategy
    masters, mixed = job.precision.endswith("-master"), job.precision.endswith("-mixed")
    schedulers = {"cosine": "WarmupCosineLR", "linear": "WarmupDecayLR", "constant": "WarmupLR"}
    autocast = {"bf16-mixed": "torch.bfloat16", "fp16-mixed": "torch.float16"}
    return {
        "train_batch_size": job.global_batch,
        "micro_batch": strategy.micro_batch,
        "steps": num_micro_batches(job, strategy),
        "clip": job.clip,
        "stage": strategy.zero,
        "offload": [strategy.offload != "none", strategy.offload == "parameters"],
        "bf16": job.precision in {"bf16", "bf16-master"},
        "fp16": masters and job.precision.startswith("fp16"),
        "autocast": autocast[job.precision] if mixed else "none",
        "optimizer": "adamw",
        "lr": job.learning_rate,
        "betas": [job.beta1, job.beta2],
        "weight_decay": job.weight_decay,
        "scheduler": schedulers[job.schedule],
        "total_steps": job.num_steps if job.schedule != "constant" else None,
    }


def _meant_accelerate(plan: Plan) -> dict[str, Any]:
    job, strategy = plan.job, plan.strategy
    way = "MULTI_GPU" if world_size(strategy) > 1 else "NO"
    way = "FSDP" if strategy.zero > 1 else way
    way = "DEEPSPEED" if strategy.engine == "deepspeed" or strategy.zero == 1 else way
    is_deep, is_fsdp = way == "DEEPSPEED", way == "FSDP"
    short = job.precision.split("-")[0] if "-" in job.precision else "no"
    degrees = [strategy.dp_replicate, strategy.dp_shard, strategy.tp]
    return {
        "distributed_type": way,
        "processes": world_size(strategy),
        "machines": plan.cluster.num_nodes,
        "mixed_precision": short,
        "use_fsdp": is_fsdp,
        "reshard": strategy.zero == 3 if is_fsdp else None,  # noqa: PLR2004 - ZeRO-3
        "checkpointing": strategy.activation_checkpointing != "none" if is_fsdp else None,
        "degrees": degrees if is_fsdp else [None] * 3,
        "stage": strategy.zero if is_deep else None,
        "steps": num_micro_batches(job, strategy) if is_deep else None,
        "clip": job.clip if is_deep else None,
    }


def _meant_hf(plan: Plan) -> dict[str, Any]:
    job, strategy = plan.job, plan.strategy
    is_deep = strategy.engine == "deepspeed" or strategy.zero == 1
    is_fsdp = strategy.zero > 1 and not is_deep
    schedulers = {
        "cosine": "cosine_with_min_lr", "linear": "linear", "constant": "constant_with_warmup",
    }  # fmt: skip
    return {
        "max_steps": job.num_steps,
        "micro_batch": strategy.micro_batch,
        "steps": num_micro_batches(job, strategy),
        "lr": job.learning_rate,
        "betas": [job.beta1, job.beta2],
        "eps": job.epsilon,
        "weight_decay": job.weight_decay,
        "clip": job.clip,
        "warmup_steps": job.warmup_steps,
        "scheduler": schedulers[job.schedule],
        "bf16": job.precision in {"bf16-mixed", "bf16-master"},
        "fp16": job.precision.startswith("fp16"),
        "seed": job.seed,
        "checkpointing": strategy.activation_checkpointing != "none",
        "fsdp": is_fsdp,
        "reshard": strategy.zero == 3 if is_fsdp else None,  # noqa: PLR2004 - ZeRO-3
        "stage": strategy.zero if is_deep else None,
        "sync_each_batch": strategy.accumulate == "reduce-each",
    }


def _meant_torchtitan(plan: Plan) -> dict[str, Any]:
    job, strategy, model = plan.job, plan.strategy, plan.job.model
    steps = num_micro_batches(job, strategy) if strategy.pp > 1 else 1
    spread = [strategy.dp_replicate, strategy.dp_shard]
    types = {"bf16-mixed": ["float32", "bfloat16"], "bf16": ["bfloat16"] * 2}
    kind = strategy.activation_checkpointing.split(":")[0]
    return {
        "width": model.hidden_size,
        "layers": model.num_layers,
        "vocabulary": model.vocab_size,
        "local_batch": strategy.micro_batch * steps,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "clip": job.clip or float("inf"),
        "max_steps": job.num_steps,
        "types": types.get(job.precision, ["float32"] * 2),
        "degrees": [
            *(reversed(spread) if strategy.zero == 1 else spread),
            *(strategy.tp, strategy.ep, strategy.pp),
        ],
        "reshard": {2: "never", 3: "always"}.get(strategy.zero, "default"),
        "lr": job.learning_rate,
        "betas": [job.beta1, job.beta2],
        "weight_decay": job.weight_decay,
        "warmup_steps": job.warmup_steps,
        "seed": job.seed,
        "checkpointing": {"full": "FullAC", "selective": "SelectiveAC"}.get(kind, "none"),
    }


def _meant_torchrun(plan: Plan) -> dict[str, Any]:
    return {
        "processes": plan.cluster.devices_per_node,
        "machines": plan.cluster.num_nodes,
        "program": ["brimful", "train", GIVEN.plan],
    }


def _meant_slurm(plan: Plan) -> dict[str, Any]:
    return {"machines": plan.cluster.num_nodes, "gpus": plan.cluster.devices_per_node}


MEANT: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "deepspeed": _meant_deepspeed,
    "accelerate": _meant_accelerate,
    "hf-trainer": _meant_hf,
    "torchtitan": _meant_torchtitan,
    "trl": meant_trl,
    "axolotl": meant_axolotl,
    "llama-factory": meant_llama_factory,
    "torchrun": _meant_torchrun,
    "slurm": _meant_slurm,
}
"""What a plan means in each target's words; spelled apart from the exporters."""


def executed_plans(target: str, seed: int) -> list[Planned]:
    """List the small plans that are run on CPUs: rates are constant, so that all agree on them."""
    config = {
        "model_type": "llama", **SMALL_LLAMA, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 3, "vocab_size": 512,
    }  # fmt: skip
    job = plain_job(
        read_config("small", config), seq_len=64, global_batch=8, num_steps=NUM_STEPS,
        learning_rate=1e-3, schedule="constant", weight_decay=0.0, seed=seed % 2**31,
    )  # fmt: skip
    if target == "hf-trainer":
        spreads: list[dict[str, Any]] = [{"micro_batch": 4}]
    elif target == "accelerate":
        # Accelerate 1.15 takes FSDP and DeepSpeed on CPUs for one process, however many there are.
        alone = {"zero": 1, "engine": "deepspeed", "accumulate": "hold", "micro_batch": 4}
        spreads = [{"dp_replicate": 2}, alone]
    else:
        spreads = [{"dp_replicate": 2}, *({"zero": stage, "dp_shard": 2} for stage in (1, 2, 3))]
    found = []
    for spread in spreads:
        fields = {"micro_batch": 2, AC: "none", "loss_chunks": 1, "attention": "sdpa", **spread}
        strategy = check_strategy(job, Strategy(**fields))
        num = world_size(strategy)
        cluster = msgspec.structs.replace(
            cluster_of("cpu"),
            num_devices=num, devices_per_node=num,
        )  # fmt: skip
        plan = Plan(
            schema=PLAN_SCHEMA,
            job=check_job(job),
            cluster=cluster,
            strategy=strategy,
            estimate=None,
        )
        found.append(Planned(f"run-zero{strategy.zero}", f"{num} x CPU", plan))
    return found


def _executed(site: Path, *, seed: int, quick: bool) -> Iterator[ExporterRow]:
    with tempfile.TemporaryDirectory() as temporary:
        bench = Site(Path(temporary) / "site", Path(tempfile.__file__).parent / "email")
        first = executed_plans("deepspeed", seed)[0].plan
        alone = Strategy(micro_batch=4, loss_chunks=1, attention="sdpa", **{AC: "none"})
        made = make_site(bench, Case(job=first.job, strategy=alone, kernels="cpu"))
        ours = ask(
            Request(
                trainer="ours", case=made, folder=str(bench.folder), text=str(bench.text),
                metered=False,
            )
        ).losses  # fmt: skip
        for target in _EXECUTED:
            chosen = executed_plans(target, seed)
            for planned in chosen[:1] if quick else chosen:
                yield _run_one(site, bench, planned, target, ours)


def _run_one(
    site: Path, bench: Site, planned: Planned, target: str, ours: tuple[float, ...]
) -> ExporterRow:
    exported = TARGETS[target](planned.plan, GIVEN)
    file = f"{planned.name}.{SUFFIXES[target]}"
    (bench.folder / file).write_text(exported.text)
    world = world_size(planned.plan.strategy)
    complaint, losses = "", []
    try:
        losses = execute(site, target, bench.folder / file, bench.folder, world)
    except RunError as error:
        complaint = str(error)
    answer = parse(site, target, bench.folder, [])
    row = _row(
        planned, target, answer["versions"], exported, {"values": {}, "complaint": complaint}, ""
    )
    return msgspec.structs.replace(
        row,
        case=msgspec.structs.replace(row.case, kernels="cpu"),
        parser="run",
        values=(),
        losses=tuple(losses),
        our_losses=ours,
    )


def summarize(rows: list[ExporterRow]) -> Summary:
    """Sum up, and say which rows miss a bar."""
    refused = [row for row in rows if row.refused]
    return Summary(
        num_drawn=len(rows),
        refusals=tuple(
            Refusal(reason=f"{row.target}: {row.refused}", num_draws=1) for row in refused
        ),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("loss", _errors(rows)),),
        bars=(
            "every export is accepted by its target's own parser, and read back as the plan says",
            f"losses of {NUM_STEPS} steps of an export that is run within {LOSS_BAR:g} of ours",
        ),
        missed=tuple(f"{row.target} {_name(row)}: {text}" for row in rows for text in misses(row)),
        findings=tuple(_finding(target, rows) for target in TARGETS),
    )


def _name(row: ExporterRow) -> str:
    return f"{row.case.job.model.name} {describe_case(row.case)} {row.devices}"


def loss_error(row: ExporterRow) -> float | None:
    """Return the largest relative difference of a loss to ours; None where it did not run."""
    if len(row.losses) != len(row.our_losses):
        return None
    pairs = zip(row.losses, row.our_losses, strict=True)
    return max(abs(relative(theirs, ours)) for theirs, ours in pairs)


def _errors(rows: Sequence[ExporterRow]) -> list[float]:
    found = (loss_error(row) for row in rows if row.parser == "run")
    return [error for error in found if error is not None]


def misses(row: ExporterRow) -> Iterator[str]:
    """Yield what of a row does not hold."""
    if row.complaint:
        yield row.complaint
        return
    for each in row.values:
        if each.meant != each.read:
            yield f"{each.name} is {each.read} and means {each.meant}"
    error = loss_error(row) if row.parser == "run" else 0.0
    if error is None or error > LOSS_BAR:
        yield f"{len(row.losses)} losses, {error} from ours"


def _finding(target: str, rows: Sequence[ExporterRow]) -> str:
    """Say in a line what came of one target."""
    own = [row for row in rows if row.target == target]
    parsed = [row for row in own if row.parser != "run" and not row.refused]
    accepted = sum(not row.complaint for row in parsed)
    tried = sum(row.parser == "run" for row in own)
    errors = _errors(own)
    run_words = "not run"
    if tried:
        run_words = f"{len(errors)} of {tried} run on CPUs"
    if errors:
        run_words += f", losses within {max(errors):.1e} of ours"
    refused = sum(bool(row.refused) for row in own)
    return (
        f"{target} ({', '.join(own[0].versions) or 'no Slurm here'}): {accepted} of {len(parsed)} "
        f"accepted by {PARSED_BY[target]}, {refused} refused, {run_words}"
    )
