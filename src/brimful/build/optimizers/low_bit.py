"""AdamW whose moments are held in four bits, or in fp8 (e4m3): torchao's, compiled.

The arithmetic is torchao's own function, compiled when each shape is updated first; it is called
one level lower than ``torchao.optim`` does so that all state is plain tensors under plain keys,
which any checkpoint holds, and the tables of 16 values are held once and not by every parameter.
Which of both it is says the record.
"""

import time
import warnings
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode

from brimful.build.optimizer_state import restore_types
from brimful.build.optimizers.base import Group, first_state
from brimful.errors import UnsupportedError
from brimful.process.library_output import quiet_libraries
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, rounded_of
from brimful.techniques.optimizers.low_bit import SCALE, Format
from brimful.values.job import Job

_MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""Keys of the two moments, and whether each has a sign."""
_UNCOMPILED = rounded_of(OPTIMIZERS[DEFAULT])


def in_few_bits(groups: list[Group], job: Job, held: Format) -> torch.optim.Optimizer:
    """Make AdamW with moments of a format.

    Raises UnsupportedError: torchao or a compiler is missing.
    """
    betas = (job.beta1, job.beta2)
    rates: dict[str, Any] = {"lr": job.learning_rate, "betas": betas, "eps": job.epsilon}
    return LowBitAdamW(groups, held=held, **rates)


class LowBitAdamW(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """AdamW by torchao's compiled update.

    Attributes:
        compile_s: Seconds that first updates of each shape have taken so far: compiling, and one
            run of each.
        num_compiled: How many there were.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        held: Format,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        """Take groups of parameters, each with its ``weight_decay``.

        Raises UnsupportedError: torchao or a compiler is missing.
        """
        self._held = held
        self._torchao = _require_torchao()
        self._tables: dict[tuple[torch.device, bool], torch.Tensor] = {}
        self._seen: set[Any] = set()
        self._kernels = "cpu"
        self.compile_s, self.num_compiled = 0.0, 0
        if detect_fake_mode() is None:
            _require_compiler([p for group in groups for p in group["params"]])
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        for group in self.param_groups:
            rate = torch.tensor(group["lr"], dtype=torch.float32, device="cpu")
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state.update(first_state(self._held.state, parameter))
                    state["step"] += 1
                    self._update(parameter, state, {**group, "lr": rate})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, moments in their few bits; see torch's."""
        super().load_state_dict(state_dict)
        restore_types(self, state_dict)

    def imitate(self, kernels: str) -> None:
        """Say whose kernels a pretend device stands for.

        ``kernels``: ``cuda`` or ``cpu``.
        """
        self._kernels = kernels

    def _update(
        self, parameter: torch.Tensor, state: dict[str, torch.Tensor], group: Group
    ) -> None:
        if detect_fake_mode() is not None:
            _pretend(parameter, self._held.workspace_bytes(tuple(parameter.shape), self._kernels))
            return
        call = self._call(parameter, state, group)
        rates = (*group["betas"], group["weight_decay"], group["eps"])
        key = (parameter.shape, parameter.stride(), parameter.dtype, parameter.device, *rates)
        if key in self._seen:
            self._compiled(*call)
            return
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about its own inner workings
            self._compiled(*call)
        self._seen.add(key)
        self.compile_s += time.perf_counter() - start
        self.num_compiled += 1

    def _call(
        self, parameter: torch.Tensor, state: dict[str, torch.Tensor], group: Group
    ) -> tuple[Any, ...]:
        """Return what torchao's update takes."""
        moments = (self._moment(parameter, state, key) for key in _MOMENTS)
        rates = (group["lr"], *group["betas"], group["weight_decay"], group["eps"])
        return parameter.detach(), parameter.grad, state["step"], *moments, None, *rates

    def _compiled(self, *call: Any) -> None:
        """Run torchao's update, compiled where no call before was like this one."""
        with torch._dynamo.utils.disable_cache_limit():  # noqa: SLF001 - a kernel for each shape
            update = torch.compile(self._torchao.single_param_adam, fullgraph=True, dynamic=False)
            update(*call, True, False)  # AdamW, no stochastic rounding

    def _moment(self, parameter: torch.Tensor, state: dict[str, torch.Tensor], key: str) -> Any:
        """Return a moment as torchao holds it, over the memory of our state."""
        if key + SCALE not in state:
            return state[key]
        codes, scale = state[key], state[key + SCALE]
        if not self._held.is_packed:
            return self._torchao.OptimStateFp8(codes, scale, parameter.dtype)
        table = self._table(parameter.device, is_signed=_MOMENTS[key])
        return self._torchao.OptimState4bit(
            codes, scale, table, _MOMENTS[key], parameter.shape, parameter.dtype
        )

    def _table(self, device: torch.device, *, is_signed: bool) -> torch.Tensor:
        """Return the 16 values that four bits stand for."""
        if (device, is_signed) not in self._tables:
            values = self._torchao.tables[is_signed]
            self._tables[device, is_signed] = torch.tensor(values, device=device)
        return self._tables[device, is_signed]


def _pretend(parameter: torch.Tensor, num_bytes: int) -> None:
    """Take what the compiled update takes: its code does not run on a device that is not there."""
    if num_bytes:
        torch.empty(num_bytes, dtype=torch.uint8, device=parameter.device)


class _Torchao(NamedTuple):
    """What is torchao's."""

    single_param_adam: Any
    OptimState4bit: Any
    OptimStateFp8: Any
    tables: dict[bool, tuple[float, ...]]


def _require_torchao() -> _Torchao:
    quiet_libraries()
    try:
        from torchao.optim import subclass_4bit
        from torchao.optim.adam import single_param_adam
        from torchao.optim.subclass_fp8 import OptimStateFp8
    except ImportError as error:
        raise UnsupportedError(
            "moments of 4 bits and of fp8 are torchao's, which is not installed; pip install "
            f"'brimful[qat]', or use optimizer={_UNCOMPILED} or {DEFAULT}"
        ) from error
    tables = {
        True: subclass_4bit.get_qmap_signed(),
        False: subclass_4bit.get_qmap_unsigned(),
    }
    return _Torchao(single_param_adam, subclass_4bit.OptimState4bit, OptimStateFp8, tables)


def _require_compiler(parameters: list[torch.Tensor]) -> None:
    """Refuse a device for which nothing can be compiled here."""
    from torch._inductor import cpp_builder, exc
    from torch.utils._triton import has_triton

    kinds = {parameter.device.type for parameter in parameters}
    if "cuda" in kinds and not has_triton():
        raise UnsupportedError(
            "optimizers with moments of 4 bits and of fp8 are compiled, for GPUs by Triton, which "
            f"is not here; install triton, or use optimizer={_UNCOMPILED}"
        )
    if "cpu" in kinds:
        try:
            cpp_builder.get_cpp_compiler()
        except exc.InvalidCxxCompiler as error:
            raise UnsupportedError(
                "optimizers with moments of 4 bits and of fp8 are compiled, and there is no C++ "
                f"compiler here; install g++, or use optimizer={_UNCOMPILED} or {DEFAULT}"
            ) from error
