"""Drawing products: two techniques or more at once, of ten architectures, on 1 to 1,024 GPUs.

``sampler.py`` draws cells of what has a formula; here what has none is drawn too, and counted:
six recipes, every optimizer, three methods, three tasks, every axis, offload. What a job or a
strategy may not be, or what is no product, is drawn again, with its reason counted. Not drawn:
TF32, pure fp16, DoRA, QAT, DeepSpeed, compiled blocks, fused kernels, settings of the allocator.
"""

import random
from collections import Counter
from typing import Any, NamedTuple

import msgspec
from cases import Case, Kernels
from cells import adapted, job_of, reason_of
from evidence import Refusal
from sampler import Range, cluster_for

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import default_task, experts_of, read_config
from brimful.models.kernels import check_taken, left_out
from brimful.models.spec import ModelSpec
from brimful.techniques.kernel_support import Place, why_not_simulated
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.runnable import check_strategy
from brimful.values.job import FP8, Job, Preference, check_job
from brimful.values.strategy import Strategy, default_reference, world_size

CHUNKS = Range(2, 16)
MOST_DEVICES = 1024
ARCHITECTURES = (
    "llama", "qwen3", "gemma2", "phi3", "gpt2", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss",
    "bert",
)  # fmt: skip
PRECISIONS = ("fp32", "bf16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp8")
AXES = (
    "one device", "zero 0", "zero 1", "zero 2", "zero 3", "hybrid", "tp", "tp zero", "pp",
    "pp zero", "pp tp", "ep", "ep pp",
)  # fmt: skip
CHECKPOINTING = ("none", "selective", "selective:K", "full:K", "full")
OFFLOAD = ("optimizer", "activations", "activations:K", "parameters", "parameters:K")
OPTIMIZER_NAMES = tuple(OPTIMIZERS)
LEAST_TECHNIQUES = 2
_RARE, _SOME, _OFTEN = 0.1, 0.3, 0.5


class Shapes(NamedTuple):
    """Between which sizes products are drawn, and for whose kernels.

    Attributes:
        head_dim: Width of a head, of which widths of layers are multiples.
        num_heads: Of a block.
        num_layers: Blocks.
        many_layers: Of a tenth, which is deep.
        vocab: Rows of the embedding.
        seq_len: Tokens per sequence.
        window: Of tokens that attention with one sees; Gemma 2's is 32 times as wide.
        micro_batch: Sequences per forward pass.
        num_experts: Of a block that has any.
        rank: Of adapters.
        shards: Devices along one axis.
        few: Likewise, beside another axis.
        replicas: Of what few devices share.
        kernels: Of the devices.
    """

    head_dim: int
    num_heads: Range
    num_layers: Range
    many_layers: Range
    vocab: Range
    seq_len: Range
    window: int
    micro_batch: Range
    num_experts: tuple[int, ...]
    rank: Range
    shards: Range
    few: tuple[int, ...]
    replicas: tuple[int, ...]
    kernels: Kernels


LARGE = Shapes(
    head_dim=64,
    num_heads=Range(4, 128),
    num_layers=Range(4, 12),
    many_layers=Range(12, 48),
    vocab=Range(8_000, 260_000),
    seq_len=Range(128, 16_384),
    window=128,
    micro_batch=Range(1, 16),
    num_experts=(8, 16, 32),
    rank=Range(4, 128),
    shards=Range(2, 256),
    few=(2, 4, 8),
    replicas=(2, 4, 16),
    kernels="cuda",
)
"""A simulation takes as long as it has blocks, and those of a kind are alike: few are deep."""


class Products(NamedTuple):
    """Cases, each of two techniques or more, and what was refused on the way to them."""

    cases: tuple[Case, ...]
    num_drawn: int
    refusals: tuple[Refusal, ...]


def draw_products(rng: random.Random, num_cases: int, shapes: Shapes = LARGE) -> Products:
    """Draw products that may be trained."""
    cases, refused = list[Case](), Counter[str]()
    while len(cases) < num_cases:
        try:
            case = draw(rng, shapes)
        except (InputError, UnsupportedError) as error:
            refused[reason_of(str(error))] += 1
            continue
        if len(techniques(case)) < LEAST_TECHNIQUES:
            refused[f"fewer than {LEAST_TECHNIQUES} techniques"] += 1
            continue
        cases.append(case)
    refusals = tuple(Refusal(reason=r, num_draws=n) for r, n in refused.most_common())
    return Products(tuple(cases), len(cases) + refused.total(), refusals)


def techniques(case: Case) -> list[str]:
    """Name what a case has beside a plain loop in fp32 on one device."""
    job, strategy = case.job, case.strategy
    has = {
        f"precision={job.precision}": job.precision != "fp32",
        f"method={job.method}": job.method != "full",
        f"optimizer={job.optimizer}": job.optimizer != "adamw",
        f"packing={job.packing}": job.packing == "documents",
        f"task={job.task}": job.task == "dpo",
        f"checkpointing={strategy.activation_checkpointing}": (
            strategy.activation_checkpointing != "none"
        ),
        f"loss_chunks={strategy.loss_chunks}": strategy.loss_chunks > 1,
        f"attention={strategy.attention}": strategy.attention != "sdpa",
        f"zero={strategy.zero}": strategy.zero > 0,
        f"dp={strategy.dp_replicate}": strategy.dp_replicate > 1,
        f"tp={strategy.tp}": strategy.tp > 1,
        f"pp={strategy.pp}": strategy.pp > 1,
        f"ep={strategy.ep}": strategy.ep > 1,
        f"accumulate={strategy.accumulate}": strategy.accumulate == "hold",
        f"offload={strategy.offload}": strategy.offload != "none",
        "optimizer_in_backward": strategy.optimizer_in_backward,
    }
    return [name for name, is_there in has.items() if is_there]


def draw(rng: random.Random, shapes: Shapes) -> Case:
    """Draw one; raises what refuses it."""
    seq_len = shapes.seq_len.draw(rng)
    model = _model(rng, rng.choice(ARCHITECTURES), seq_len, shapes)
    micro_batch = shapes.micro_batch.draw(rng)
    spread = _spread(rng, rng.choice(AXES), model, shapes)
    num_micro = rng.choice((1, 2, 3)) if spread.get("pp", 1) == 1 else rng.choice((1, 2, 4, 8))
    num_copies = spread.get("dp_replicate", 1) * spread.get("dp_shard", 1)
    job = job_of(
        model,
        precision=rng.choice(PRECISIONS),
        optimizer="adamw" if rng.random() < _OFTEN else rng.choice(OPTIMIZER_NAMES),
        seq_len=seq_len,
        global_batch=micro_batch * num_micro * spread.pop("times", 1) * num_copies,
    )
    job = _learning(rng, job, shapes.rank)
    is_dpo = job.task == "dpo"
    strategy = Strategy(
        reference=default_reference(job) if is_dpo else "none",
        micro_batch=micro_batch,
        activation_checkpointing=_some(rng, rng.choice(CHECKPOINTING), model.num_layers),
        loss_chunks=CHUNKS.draw(rng) if rng.random() < _OFTEN else 1,
        attention="eager" if rng.random() < _RARE or left_out(model) else "sdpa",
        accumulate=rng.choice(("hold", "reduce-each")),
        offload=_offload(rng, model.num_layers),
        optimizer_in_backward=rng.random() < _RARE,
        **spread,
    )
    case = Case(job=check_job(job), strategy=check_strategy(job, strategy), kernels=shapes.kernels)
    check_run(case)
    return case


def check_run(case: Case) -> None:
    """Refuse what a simulation refuses before it begins."""
    device = cluster_for(case).device
    if case.job.precision == FP8:  # of which a model says what it converts when it is built
        from brimful.build.assemble import build_skeleton
        from brimful.build.fp8_layers import use_fp8

        use_fp8(build_skeleton(case.job, case.strategy), case.job, emulate=True)
    check_taken(case.job, case.strategy.attention)
    if world_size(case.strategy) > MOST_DEVICES:
        raise InputError("more devices than are drawn")
    place = Place(device.kernels, device.capability)
    if why := why_not_simulated(case.job, case.strategy, place):
        raise UnsupportedError(why)


def _some(rng: random.Random, kind: str, num_layers: int) -> str:
    return kind.replace("K", str(rng.randint(1, num_layers - 1)))


def _offload(rng: random.Random, num_layers: int) -> Any:
    if rng.random() > _SOME:
        return "none"
    chosen = [_some(rng, kind, num_layers) for kind in OFFLOAD if rng.random() < _SOME]
    return ",".join(chosen) or "none"


def _learning(rng: random.Random, job: Job, rank: Range) -> Job:
    """Draw how a job learns: the method, the rows, the task."""
    method = rng.choice(("full", "full", "lora", "qlora"))
    job = adapted(job, method, rank=rank.draw(rng), base="same")
    task = default_task(job.model)
    changes: dict[str, Any] = {"task": task}
    if task != "causal-lm":
        changes["packing"] = "none"
    elif rng.random() < _RARE:
        changes["packing"] = "documents"
    elif rng.random() < _RARE:
        preference = Preference(beta=0.1, label_smoothing=0.0)
        changes |= {"task": "dpo", "packing": "none", "preference": preference}
    return msgspec.structs.replace(job, **changes)


def _spread(rng: random.Random, axis: str, model: ModelSpec, shapes: Shapes) -> dict[str, Any]:
    shards, few = shapes.shards.draw(rng), rng.choice(shapes.few)
    zero = rng.choice((2, 3))
    kinds: dict[str, dict[str, Any]] = {
        "one device": {},
        "zero 0": {"dp_replicate": shards},
        "zero 1": {"zero": 1, "dp_shard": shards},
        "zero 2": {"zero": 2, "dp_shard": shards},
        "zero 3": {"zero": 3, "dp_shard": shards},
        "hybrid": {"zero": zero, "dp_shard": few, "dp_replicate": rng.choice(shapes.replicas)},
        "tp": {"tp": few},
        "tp zero": {"tp": few, "zero": zero, "dp_shard": shards},
    }
    row = {"pp": rng.choice((2, 4)), "pp_schedule": rng.choice(("1f1b", "gpipe", "interleaved"))}
    if row["pp_schedule"] == "interleaved":
        row["stages_per_device"] = 2
    row["times"] = 4
    kinds["pp"] = row
    kinds["pp zero"] = {**row, "zero": rng.choice((1, 2, 3)), "dp_shard": few}
    kinds["pp tp"] = {**row, "tp": 2, **rng.choice(({}, {"zero": zero, "dp_shard": 2}))}
    parted = {"zero": zero, "dp_shard": few * 2, "ep": rng.choice((2, few))}
    kinds["ep"], kinds["ep pp"] = parted, {**row, **parted}
    if not experts_of(model).num_experts and axis.startswith("ep"):
        axis = "zero 3"
    return dict(kinds[axis])


def _model(rng: random.Random, kind: str, seq_len: int, shapes: Shapes) -> ModelSpec:
    heads, head_dim = shapes.num_heads.draw(rng), shapes.head_dim
    sizes: dict[str, Any] = {
        "hidden_size": heads * head_dim,
        "intermediate_size": head_dim * round(heads * rng.uniform(1.5, 4)),
        "num_hidden_layers": (
            shapes.many_layers if rng.random() < _RARE else shapes.num_layers
        ).draw(rng),
        "num_attention_heads": heads,
        "vocab_size": shapes.vocab.draw(rng),
        "max_position_embeddings": seq_len * rng.choice((1, 2)),
    }
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    grouped = {
        **sizes,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": rng.random() < _SOME,
    }
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": head_dim * rng.randint(2, 16)}
    num_experts = rng.choice(shapes.num_experts)
    own: dict[str, dict[str, Any]] = {
        "llama": grouped,
        "qwen3": {**grouped, "head_dim": head_dim},
        "gemma2": {**grouped, "head_dim": head_dim, "sliding_window": 32 * shapes.window},
        "phi3": {**grouped, "pad_token_id": None},
        "gpt2": {
            "n_embd": sizes["hidden_size"], "n_layer": sizes["num_hidden_layers"], "n_head": heads,
            "vocab_size": sizes["vocab_size"], "n_positions": sizes["max_position_embeddings"],
            "bos_token_id": None, "eos_token_id": None,
        },
        "mixtral": {**grouped, "num_local_experts": num_experts, **experts, "sliding_window": None},
        "qwen3_moe": {**grouped, "head_dim": head_dim, "num_experts": num_experts, **experts},
        "deepseek_v3": {
            **sizes, **experts, "num_key_value_heads": heads, "n_routed_experts": num_experts,
            "first_k_dense_replace": rng.choice((1, 2)), "n_shared_experts": 1,
            "q_lora_rank": head_dim * heads // 4, "kv_lora_rank": 2 * head_dim,
            "qk_rope_head_dim": head_dim // 2, "qk_nope_head_dim": head_dim,
            "v_head_dim": head_dim, "n_group": 4, "topk_group": 2,
        },
        "gpt_oss": {
            **grouped, "head_dim": head_dim, "num_local_experts": num_experts,
            "num_experts_per_tok": 2, "sliding_window": shapes.window,
        },
        "bert": sizes,
    }  # fmt: skip
    return read_config("drawn", {"model_type": kind, **own[kind]})
