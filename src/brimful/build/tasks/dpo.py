"""Decoders that learn which of two answers is preferred: direct preference optimisation.

A pair is two rows, the preferred answer first, each behind its question. What counts of a row is
the sum of its answer's log-probabilities; a reward is ``beta`` times what that gained over the
reference model, and the loss is the cross-entropy of the preferred answer under the two rewards:
``-log sigmoid(beta * ((chosen - reference chosen) - (rejected - reference rejected)))``.

Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7; ``DPOTrainer`` of TRL (``sigmoid``).

Shapes: B pairs, S tokens of a row, N tokens of all rows, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from brimful.build.attention import model_inputs
from brimful.build.batch import ANSWER, IGNORE_INDEX, Batch
from brimful.build.logits import before_head, finish, steps_of
from brimful.build.loss import CHUNK, without_weight_cache
from brimful.build.model import skeleton_of
from brimful.build.phases import phase
from brimful.build.program import Program
from brimful.build.reference import output_layer, without_adapters
from brimful.build.tasks.base import TaskParts
from brimful.errors import InputError
from brimful.values.job import Job, Preference
from brimful.values.strategy import Strategy

ANSWERS = 2


class TokenScores(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """The log-probability of each token; logits are whole or in chunks, as in ``TokenLoss``."""

    def __init__(self, head: nn.Module, *, num_chunks: int) -> None:
        """Keep the output layer and the number of chunks."""
        super().__init__()
        self.head = head
        self.num_chunks = num_chunks
        self.steps = steps_of(head)

    def forward(self, hidden_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Return the tokens' log-probabilities, [N] of fp32, 0 where ``IGNORE_INDEX``.

        ``hidden_ND``: [tokens, hidden]. ``labels_N``: [tokens], the next token of each, or
        ``IGNORE_INDEX``.
        """
        if self.num_chunks == 1:
            return self._scores(hidden_ND, labels_N)
        pairs = zip(hidden_ND.chunk(self.num_chunks), labels_N.chunk(self.num_chunks), strict=True)
        with without_weight_cache():
            if not torch.is_grad_enabled():
                return torch.cat([self._scores(*pair) for pair in pairs])
            return torch.cat([
                checkpoint(
                    self._scores, *pair, use_reentrant=False, preserve_rng_state=False
                )
                for pair in pairs
            ])  # fmt: skip

    def _scores(self, hidden_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:  # noqa: N803
        with phase(CHUNK):
            logits_NV = finish(self.head(hidden_ND), self.steps).float()  # noqa: N806
            return -functional.cross_entropy(
                logits_NV, labels_N, reduction="none", ignore_index=IGNORE_INDEX
            )


class PreferenceLoss(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Cross-entropy of the preferred answer; ``answers`` scores what it is called with."""

    def __init__(self, head: nn.Module, preference: Preference, *, num_chunks: int) -> None:
        """Keep the output layer and the settings of the loss."""
        super().__init__()
        self.answers = TokenScores(head, num_chunks=num_chunks)
        self.preference = preference

    def forward(
        self,
        rewards_B2: torch.Tensor,  # noqa: N803
        labels_B: torch.Tensor,  # noqa: N803
        num_targets: int,
    ) -> torch.Tensor:
        """Return the sum of the unmasked pairs' losses divided by ``num_targets``.

        ``rewards_B2``: [pairs, answers]. ``labels_B``: [pairs], which answer is preferred, or
        ``IGNORE_INDEX``.
        """
        total = functional.cross_entropy(
            rewards_B2,
            labels_B,
            reduction="sum",
            ignore_index=IGNORE_INDEX,
            label_smoothing=ANSWERS * self.preference.label_smoothing,
        )
        return total / num_targets


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the decoder on ``meta``."""
    return skeleton_of(AutoModelForCausalLM, job, strategy)


def loss(model: nn.Module, job: Job, strategy: Strategy) -> PreferenceLoss:
    """Make the loss over the model's own head, whole or in chunks."""
    head: Any = model.get_output_embeddings()
    return PreferenceLoss(head, preference_of(job), num_chunks=strategy.loss_chunks)


def preference_of(job: Job) -> Preference:
    """Return the settings of a preference job's loss."""
    assert job.preference is not None  # check_job refuses it
    return job.preference


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss.

    The reference is asked first, while nothing is kept for a backward pass.
    """
    labels_N = _answer_labels(batch)  # noqa: N806
    reference_B2 = _reference_scores(program, batch, labels_N)  # noqa: N806
    scores_B2 = _answer_scores(program, program.model, batch, labels_N)  # noqa: N806
    rewards_B2 = preference_of(program.job).beta * (scores_B2 - reference_B2)  # noqa: N806
    total: torch.Tensor = program.loss(rewards_B2, batch.labels, num_targets)
    return total


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def first_scores(program: Program, batch: Batch) -> torch.Tensor:
    """Return the answers' log-probabilities under the model as it is: [pairs, answers] of fp32.

    ``program``: before its first step, it is its own reference.
    """
    return _answer_scores(program, program.model, batch, _answer_labels(batch))


def _answer_labels(batch: Batch) -> torch.Tensor:
    """Return the next token of each, [N], where that is part of an answer."""
    assert batch.segments is not None  # of pairs they say what the answers are
    is_answer = (batch.segments == ANSWER).roll(-1, 2)
    is_answer[..., -1] = False
    return batch.inputs.roll(-1, 2).masked_fill_(~is_answer, IGNORE_INDEX).flatten()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _reference_scores(program: Program, batch: Batch, labels_N: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Return the answers' log-probabilities under the reference, [B, 2]."""
    if batch.reference is not None:
        return batch.reference
    if program.reference is not None:
        scores_B2: torch.Tensor = program.reference(  # noqa: N806
            _answer_scores, program, batch, labels_N
        )
        return scores_B2
    if program.strategy.reference != "adapters-off":
        raise InputError(
            f"a batch lacks the reference's log-probabilities, which reference="
            f"{program.strategy.reference} computes beforehand; use resident"
        )
    with without_adapters(program.model) as base:
        return _answer_scores(program, base, batch, labels_N)


def _answer_scores(
    program: Program,
    model: Any,
    batch: Batch,
    labels_N: torch.Tensor,  # noqa: N803
) -> torch.Tensor:
    """Return the sums of the answers' log-probabilities under a model: [B, 2] of fp32."""
    rows = Batch(batch.inputs.flatten(0, 1), batch.labels)
    hidden_BSD = model.base_model(  # noqa: N806
        input_ids=rows.inputs, **model_inputs(program, rows), use_cache=False
    )[0]
    hidden_BSD = before_head(model, hidden_BSD)  # noqa: N806
    if model is program.model:
        scores_N = program.loss.answers(hidden_BSD.flatten(0, 1), labels_N)  # noqa: N806
    else:
        with output_layer(model) as head:
            scoring = TokenScores(head, num_chunks=program.strategy.loss_chunks)
            scores_N = scoring(hidden_BSD.flatten(0, 1), labels_N)  # noqa: N806
    return scores_N.view(batch.inputs.shape).sum(2)


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of pairs as long as they get."""
    shape = (strategy.micro_batch, ANSWERS, job.seq_len)
    ids = torch.zeros((), dtype=torch.int64, device="cpu").expand(shape)
    segments = torch.ones((), dtype=torch.int32, device="cpu").expand(shape)
    labels = torch.zeros(strategy.micro_batch, dtype=torch.int64, device="cpu")
    scores = torch.zeros((strategy.micro_batch, ANSWERS), device="cpu")
    return Batch(ids, labels, segments, scores if strategy.reference == "precomputed" else None)


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
