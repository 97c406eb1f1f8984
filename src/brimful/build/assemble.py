"""Putting a program together: the one place that turns a job and a strategy into something runs."""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn

from brimful.build.adapters import base_dtype
from brimful.build.checkpointing import checkpoint_blocks
from brimful.build.compiling import compile_loss, compile_model
from brimful.build.deepspeed.engine import base_optimizer, build_engine
from brimful.build.early_update import EarlyUpdate
from brimful.build.exactness import check_built
from brimful.build.fp8_layers import use_fp8
from brimful.build.keep_fp32 import check_kept
from brimful.build.layer_kernels import check_packages, choose_code
from brimful.build.liger import check_installed, fuse_kernels
from brimful.build.model import materialize
from brimful.build.offload import HostOptimizer, Offloaded, mark_away, offload_blocks, offloaded
from brimful.build.optimizers import build_optimizer, rule_for
from brimful.build.optimizers.base import parameter_groups
from brimful.build.parallel import (
    build_mesh,
    parallelize,
    parallelize_frozen,
    parted,
    settle,
    settle_frozen,
)
from brimful.build.parallel.pipeline import Pipeline, Site, build_pipeline
from brimful.build.precision import build_scaler
from brimful.build.program import Program
from brimful.build.quantize import pack
from brimful.build.reference import Second, fill_reference, offload, reference_skeleton
from brimful.build.root import Root
from brimful.build.rounding import prepare_qat
from brimful.build.router_losses import router_losses
from brimful.build.tasks import task_of
from brimful.techniques.kernel_support import Place, check_attention, check_fused, check_precision
from brimful.values.job import Job
from brimful.values.strategy import COMPILED, Strategy, gathers, is_flat, num_checkpointed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.build.parallel.stages import StagePart

HOST = torch.device("cpu")


def build_program(job: Job, strategy: Strategy, device: torch.device) -> Program:
    """Build model, loss and optimizer on a device.

    ``device``: where: ``cpu``, ``cuda``, or the pretend ``gpu`` under a fake mode.
    """
    return finish_program(
        job,
        strategy,
        device,
        build_skeleton(job, strategy),
        reference=reference_skeleton(job, strategy),
    )


def build_skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the model on the ``meta`` device: shapes and code, no bytes."""
    return task_of(job).skeleton(job, strategy)


def _check(job: Job, strategy: Strategy, device: torch.device, skeleton: nn.Module) -> None:
    """Refuse what only the built skeleton, or the device that it goes to, tells."""
    check_built(job, strategy, skeleton)
    check_kept(job, strategy, skeleton)
    if device.type in {"cpu", "cuda"}:  # the pretend one stands for either: ``simulate`` asks
        place = Place(device.type, _capability(device))
        check_precision(job, place)
        check_attention(job, strategy.attention, place)
        check_fused(strategy, place)
        if strategy.fused_kernels == "liger":
            check_installed()
        if device.type == "cuda":
            check_packages(job, strategy)


def finish_program(  # noqa: PLR0913 - skeletons, and where they get their bytes
    job: Job,
    strategy: Strategy,
    device: torch.device,
    skeleton: nn.Module,
    *,
    reference: nn.Module | None = None,
    host: torch.device = HOST,
) -> Program:
    """Turn a skeleton into a program; see ``build_program``.

    Apart from it because a skeleton must be built outside a fake mode, and the rest inside.

    ``reference``: of ``build.reference.reference_skeleton``.
    """
    _check(job, strategy, device, skeleton)
    emulates = host == device  # memory of the host alone: a CPU, or what stands for one
    if job.task != "module":  # which is made anew on its device
        use_fp8(skeleton, job, emulate=emulates)
        prepare_qat(skeleton, job)
    root = Root(skeleton, task_of(job), router_losses(skeleton, job))
    mesh = build_mesh(strategy, device.type)
    if gathers(strategy):
        # What is sharded is what holds a weight; FSDP1's flat parameters are of one type.
        pack(skeleton, base_dtype(job) if is_flat(strategy) else None)
    called: tuple[nn.Module, ...] = (root,)
    if strategy.engine == "torch":
        called = parallelize(root, job, strategy, mesh)
    away = offloaded(job, strategy)
    mark_away(skeleton, away)
    model = materialize(skeleton, device=device, job=job)
    if job.task == "module":
        use_fp8(model, job, emulate=emulates)
    if strategy.fused_kernels == "liger":
        fuse_kernels(model)
    if device.type == "cuda":
        choose_code(model, strategy)
    checkpoint_blocks(model, job, strategy)
    compile_model(model, strategy)
    num_again = num_checkpointed(strategy, num_layers=job.model.num_layers)
    if "blocks" in COMPILED[strategy.compile]:
        num_again = 0  # checkpoints are inside of what is compiled
    moved = offload_blocks(model, away, device, num_checkpointed=num_again)
    site = Site(job, strategy, device, mesh)
    second = _filled(reference, model, site, host)
    spread = _spread(root, called, site, moved)
    loss = task_of(job).loss(model, job, strategy)
    compile_loss(loss, strategy)
    return Program(
        job=job,
        strategy=strategy,
        root=spread.root,
        model=model,
        loss=loss,
        optimizer=spread.optimizer,
        scaler=build_scaler(job),
        device=device,
        mesh=mesh,
        reference=second,
        pipeline=spread.pipeline,
        early=_early(spread.optimizer, job, strategy, device, moved),
        offloaded=moved,
        kernels="cpu" if emulates else "cuda",
    )


def _filled(
    reference: nn.Module | None, model: nn.Module, site: "Site", host: torch.device
) -> Second | None:
    """Give a reference the weights that the model begins with, where it is kept."""
    if reference is None:
        return None
    job, strategy, device = site.job, site.strategy, site.device
    use_fp8(reference, job, emulate=host == device)
    second = Second(reference)
    if gathers(strategy):
        pack(reference, None)
    parallelize_frozen(second, job, strategy, site.mesh)
    is_away = strategy.reference == "offloaded"
    fill_reference(reference, model, job, device=device, host=host if is_away else device)
    settle_frozen(second, strategy)
    if is_away:
        offload(reference, device)
    return second


class _Spread(NamedTuple):
    """What a micro-batch is called through, and what updates."""

    root: nn.Module
    optimizer: torch.optim.Optimizer
    pipeline: Pipeline | None = None


def _spread(root: Root, called: tuple[nn.Module, ...], site: Site, away: Offloaded) -> _Spread:
    job, strategy, mesh = site.job, site.strategy, site.mesh
    if strategy.engine == "deepspeed":
        engine = build_engine(root, job, strategy, site.device)
        return _Spread(engine, base_optimizer(engine))
    settled = [settle(whole, job, strategy, mesh) for whole in called]
    optimizer = _optimizer(root.model, site, away)
    if strategy.pp == 1:
        return _Spread(settled[0], optimizer)
    parts = cast("Sequence[StagePart]", called)
    return _Spread(
        nn.ModuleList(settled), optimizer, build_pipeline(root.model, parts, settled, site)
    )


def _optimizer(model: nn.Module, site: Site, away: Offloaded) -> torch.optim.Optimizer:
    """Build the optimizer, on the host where its state is to be there."""
    job, strategy = site.job, site.strategy
    if not offloaded(job, strategy).optimizer:
        return build_optimizer(job, model, parted=parted(strategy, site.mesh))
    kept = () if away.parameters is None else away.parameters.parameters
    optimizer = HostOptimizer(
        parameter_groups(job, model), make=rule_for(job), device=site.device, away=kept
    )
    if away.parameters is not None:
        away.parameters.deliver = optimizer.gradients.take
    return optimizer


def _early(
    optimizer: torch.optim.Optimizer,
    job: Job,
    strategy: Strategy,
    device: torch.device,
    moved: Offloaded,
) -> EarlyUpdate | None:
    if not strategy.optimizer_in_backward:
        return None
    away = offloaded(job, strategy)
    return EarlyUpdate(optimizer, device, moved.parameters, state_travels=away.states)


def _capability(device: torch.device) -> float:
    """Return the CUDA compute capability of a device, e.g. 9.0; 0 for a CPU."""
    if device.type != "cuda":
        return 0.0
    major, minor = torch.cuda.get_device_capability(device)
    return float(major + minor / 10)
