"""What two trainers share: first weights, first adapters, and rows of tokens in one order."""

import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from cases import Case

from brimful.build.assemble import build_program
from brimful.files.writing import cache_dir
from brimful.train.adapter_export import export_adapters
from brimful.train.data.batches import START
from brimful.train.data.prepare import prepare
from brimful.train.data.source import DataSource, as_source
from brimful.values.job import Job
from brimful.values.run_files import TOKENS
from brimful.values.strategy import Strategy

WEIGHTS, ADAPTERS, ROWS = "weights", "adapters", "rows.npy"
_PLAINEST = Strategy(
    micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
)


class Site(NamedTuple):
    """A folder for the runs of one job, and the text that they read.

    Attributes:
        folder: Holds the weights, the adapters where the job has some, and the rows.
        text: What is trained on; None is the standard library.
    """

    folder: Path
    text: Path | None

    @property
    def source(self) -> DataSource:
        """The text as ``train`` takes it."""
        return as_source(self.text)


def token_cache() -> Path:
    """Return where token files are kept between runs."""
    return cache_dir() / TOKENS


def make_site(site: Site, case: Case) -> Case:
    """Write all that both trainers read.

    Args:
        site: Where; made anew.
        case: What will be run.

    Returns:
        The case with the written weights.
    """
    shutil.rmtree(site.folder, ignore_errors=True)
    site.folder.mkdir(parents=True)
    job = _write_weights(site, case.job)
    if job.adapter is not None:
        _write_adapters(site, job)
    _write_rows(site, job)
    return msgspec.structs.replace(case, job=job)


def _write_weights(site: Site, job: Job) -> Job:
    """Write random weights in fp32, and beside them a tokenizer of the text."""
    weights = site.folder / WEIGHTS
    plain = msgspec.structs.replace(job, method="full", adapter=None, precision="fp32")
    program = build_program(plain, _PLAINEST, torch.device("cpu"))
    with without_progress():
        program.model.save_pretrained(weights)
    _prepared(site, plain).coder.save(weights)
    return msgspec.structs.replace(job, weights=str(weights))


@contextlib.contextmanager
def without_progress() -> Iterator[None]:
    """Keep the bars of ``transformers`` off a terminal that shows ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _write_adapters(site: Site, job: Job) -> None:
    """Write the adapters that this job begins with, for the peer to load."""
    program = build_program(job, _PLAINEST, torch.device("cpu"))
    export_adapters(program.model, base=str(job.weights), folder=site.folder / ADAPTERS)


def _write_rows(site: Site, job: Job) -> None:
    """Write the windows of all steps, [steps * batch, tokens + 1], in the order of training."""
    batches, position = _prepared(site, job).batches, START
    steps = []
    for _ in range(job.num_steps):
        windows, position = batches.windows_at(position)
        steps.append(windows)
    content = io.BytesIO()
    np.save(content, np.concatenate(steps))
    (site.folder / ROWS).write_bytes(content.getvalue())


def _prepared(site: Site, job: Job):  # type: ignore[no-untyped-def]  # noqa: ANN202 - Prepared
    return prepare(site.source, job, micro_batch=1, cache=token_cache(), num_eval_tokens=1)
