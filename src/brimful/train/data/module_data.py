"""Data of a module of the user's: the dataset that its factory brings, sample by sample.

``--data module`` asks for it. The order, the position and the split are those of all other data: a
seeded permutation per pass, and a hash of a sample's number that says whether it is held out.
"""

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.errors import DataError
from brimful.train.data.batches import DataPosition, shuffled
from brimful.train.data.source import DataSource
from brimful.train.data.splitting import content_hash, plain_threshold
from brimful.train.data.tokenizer import unigram_entropy
from brimful.values.job import Job

if TYPE_CHECKING:
    import torch

    from brimful.build.batch import Batch

PATH = "module"
"""What ``--data`` is for data that comes with the model."""
MAX_HELDOUT = 1024
"""Samples that are judged by, at most."""


class ModuleData(NamedTuple):
    """A dataset, ready to be trained on.

    Attributes:
        batches: Its steps.
        heldout: The fixed sample to judge by.
        num_heldout: How many samples that are.
        label_entropy: Of their labels where these are classes, in nats; else 0.
        data_hash: What a resumed run must find again: the factory's name and the length.
    """

    batches: "ModuleBatches"
    heldout: "list[Batch]"
    num_heldout: int
    label_entropy: float
    data_hash: str


class ModuleBatches:
    """Steps of samples in a shuffled order, without replacement within a pass."""

    def __init__(self, dataset: Any, numbers: list[int], job: Job, *, micro_batch: int) -> None:
        """Keep the data and the sizes.

        ``dataset``: map-style: ``dataset[n]`` is an input and a label. ``job``: says how many make
        a step, and the seed of the order. ``micro_batch``: samples per forward pass; changes
        nothing of what a step sees.
        """
        self.numbers = numbers
        self._dataset = dataset
        self._job = job
        self._micro_batch = micro_batch

    def step_at(self, position: DataPosition) -> tuple[list["Batch"], DataPosition]:
        """Make one step's micro-batches on the host, and say where the next step begins."""
        picked, num = [], len(self.numbers)
        epoch, index = position.epoch, position.index
        for _ in range(self._job.global_batch):
            place = shuffled(index, num_items=num, seed=self._job.seed, epoch=epoch)
            picked.append(self.numbers[place])
            epoch, index = (epoch, index + 1) if index + 1 < num else (epoch + 1, 0)
        batches = _batches(self._job, self._dataset, picked, self._micro_batch)
        return batches, DataPosition(epoch=epoch, index=index)


def open_module_data(job: Job, source: DataSource, *, micro_batch: int) -> ModuleData:
    """Open the dataset of a job's factory.

    Raises InputError: the factory fails.
    """
    from brimful.build.user_module import user_data

    name = job.model.name
    if source.path != PATH:
        raise DataError(
            f"--data {source.path} is not read by task=module, whose data comes with {name}; "
            f"write --data {PATH}"
        )
    dataset = user_data(name)
    if dataset is None:
        raise DataError(f"{name}() returned nothing called dataset; add a map-style dataset to it")
    if not hasattr(dataset, "__len__"):
        raise DataError(f"the dataset of {name}() has no length; give a map-style dataset")
    train, heldout = _split(len(dataset), source.heldout_share)
    if len(train) < job.global_batch or not heldout:
        raise DataError(
            f"the dataset of {name} has {len(dataset)} samples, {len(heldout)} of them held out, "
            f"and one step of global_batch={job.global_batch} needs {job.global_batch}; add some "
            f"or lower it"
        )
    judged = _batches(job, dataset, heldout, micro_batch)
    return ModuleData(
        batches=ModuleBatches(dataset, train, job, micro_batch=micro_batch),
        heldout=judged,
        num_heldout=len(heldout),
        label_entropy=_entropy(judged),
        data_hash=hashlib.blake2b(f"{name} {len(dataset)}".encode(), digest_size=8).hexdigest(),
    )


def _split(num_samples: int, share: float) -> tuple[list[int], list[int]]:
    below = plain_threshold(share)
    is_held = [content_hash(number) < below for number in range(num_samples)]
    train = [number for number in range(num_samples) if not is_held[number]]
    return train, [number for number in range(num_samples) if is_held[number]][:MAX_HELDOUT]


def _batches(job: Job, dataset: Any, numbers: list[int], micro_batch: int) -> list["Batch"]:
    import torch

    from brimful.build.batch import Batch

    samples = [_sample(job, dataset, number) for number in numbers]
    groups = [samples[at : at + micro_batch] for at in range(0, len(samples), micro_batch)]
    try:
        return [
            Batch(torch.stack([x for x, _ in group]), torch.stack([y for _, y in group]))
            for group in groups
        ]
    except RuntimeError as error:
        raise DataError(
            f"samples of {job.model.name} differ in shape ({str(error).splitlines()[0]}); make "
            f"them alike"
        ) from error


def _sample(job: Job, dataset: Any, number: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    import torch

    try:
        inputs, label = dataset[number]
        return torch.as_tensor(inputs), torch.as_tensor(label)
    except Exception as error:  # the user's code
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise DataError(
            f"sample {number} of {job.model.name} is no input and label ({reason[:160]}); mend it"
        ) from error


def _entropy(judged: list["Batch"]) -> float:
    """Return the entropy of the labels where they are whole numbers, one for each sample."""
    import torch

    labels = torch.cat([batch.labels for batch in judged])
    if labels.ndim != 1 or labels.is_floating_point() or int(labels.min()) < 0:
        return 0.0
    return unigram_entropy(labels.numpy())
