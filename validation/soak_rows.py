"""Rows of evidence on a long real run: what grows, and what does not."""

import msgspec


class SoakRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity of the run, the first and the last quarter of the steps after the warm-up.

    Attributes:
        what: ``resident``: of the process, after each step; ``live``: of all tensors behind some
            steps; ``disk``: of the run's checkpoints.
        command: The run.
        num_steps: Optimizer steps.
        num_warm_up: Steps that are left out.
        num_evals: Held-out losses that were taken.
        num_samples: Figures after the warm-up.
        first_bytes: Median of the first quarter.
        last_bytes: Median of the last quarter.
        slope_share: Least-squares slope times the steps, of ``first_bytes``.
        change_share: ``last_bytes`` less ``first_bytes``, of ``first_bytes``.
    """

    what: str
    command: tuple[str, ...]
    num_steps: int
    num_warm_up: int
    num_evals: int
    num_samples: int
    first_bytes: int
    last_bytes: int
    slope_share: float
    change_share: float
