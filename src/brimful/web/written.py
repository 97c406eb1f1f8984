"""What is said of a model that writes text, as ``brimful estimate --task inference`` says it."""

import argparse
import contextlib
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.cli import inference
from brimful.cli.assumed import prices_from
from brimful.hardware.cluster import Cluster

if TYPE_CHECKING:
    from brimful.cost.inference import InferenceJob
    from brimful.show.answer import Answer

_BILLION = 1e9
_HOUR_S = 3600.0


class Written(NamedTuple):
    """An answer and what it is of.

    Attributes:
        asked: The question, resolved.
        answer: What the command line says.
        tokens_per_s: Of all texts together, at most; None: unknown.
    """

    asked: "tuple[InferenceJob, Cluster]"
    answer: "Answer"
    tokens_per_s: float | None


def written(args: argparse.Namespace) -> Written:
    """Answer, and print nothing.

    Raises BrimfulError: it is refused.
    """
    from brimful.cost.decoding import decoding_of

    answers: list[Answer] = []
    args.page, args.json = answers.append, True
    with contextlib.redirect_stdout(io.StringIO()):
        inference.run_estimate(args)
    job, cluster = asked = inference.asked(args)
    decoding = decoding_of(job, cluster)
    return Written(asked, answers[0], decoding and decoding.most_tokens_per_s)


def defaults_of(job: "InferenceJob") -> dict[str, Any]:
    """Return what every field of the form stands at, where nothing is typed in it."""
    named = {
        "seq_len": job.seq_len,
        "global_batch": job.num_sequences,
        "prompt_len": job.prompt_len,
        "weights_format": job.weights_format,
        "precision": job.compute,
    }
    return {key: str(value) for key, value in named.items()}


def usd_of_tokens(
    args: argparse.Namespace, cluster: Cluster, tokens_per_s: float | None
) -> float | None:
    """Return dollars of a billion tokens at a rate; None where price or rate is unknown."""
    price = prices_from(args).gpus.get(cluster.name)
    if price is None or not tokens_per_s:
        return None
    hours = _BILLION / tokens_per_s / _HOUR_S
    return price.usd_per_gpu_hour * cluster.num_devices * hours
