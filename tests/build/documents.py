"""Documents of uneven lengths, packed, padded and one by one: the last is the specification."""

import torch

from brimful.build.batch import IGNORE_INDEX, Batch

from .plain import BETAS, EPSILON, plain_model

PACKED_LENGTHS = (((9, 5, 8), (24,)), ((1, 15, 2, 3), (7, 12)))
"""Of each row of two steps, which take turns; the first row's end, where short, is padding."""
PADDED_LENGTHS = (((9,), (24,), (5,), (1,)), ((17,), (2,), (23,), (8,)))


def make_documents(job, lengths, *, step):
    """Make the documents of a step, row by row: pairs of tokens and next-token labels."""
    generator = torch.Generator().manual_seed(40 + step)
    rows = []
    for row in lengths[step % len(lengths)]:
        tokens = [
            torch.randint(0, job.model.vocab_size, (length + 1,), generator=generator)
            for length in row
        ]
        rows.append([(x[:-1], mask_first_third(x[1:])) for x in tokens])
    return rows


def mask_first_third(labels):
    """Mask as a chat's question is masked; a label of a short document is left."""
    masked = labels.clone()
    masked[: len(labels) // 3] = IGNORE_INDEX
    return masked


def to_batch(job, rows):
    """Lay each row's documents end to end and pad the rest, as the data does."""
    shape = (len(rows), job.seq_len)
    inputs = torch.full(shape, job.model.vocab_size - 1)
    labels, segments = torch.full(shape, IGNORE_INDEX), torch.zeros(shape, dtype=torch.int32)
    for place, row in enumerate(rows):
        start = 0
        for number, (document, targets) in enumerate(row, start=1):
            stop = start + len(document)
            inputs[place, start:stop], labels[place, start:stop] = document, targets
            segments[place, start:stop] = number
            start = stop
    return Batch(inputs, labels, segments)


def run_alone(job, weights, lengths, *, num_steps):
    """Train with every document in a forward pass of its own; (loss, gradient norm) of each."""
    model = plain_model(job, weights)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=BETAS, eps=EPSILON)
    steps = []
    for step in range(num_steps):
        rows = make_documents(job, lengths, step=step)
        documents = [document for row in rows for document in row]
        num_targets = sum(int((labels != IGNORE_INDEX).sum()) for _, labels in documents)
        total = 0.0
        for inputs, labels in documents:
            logits = model(input_ids=inputs[None]).logits[0]
            chosen = labels != IGNORE_INDEX
            found = logits.log_softmax(-1)[chosen].gather(1, labels[chosen, None])
            loss = -found.sum() / num_targets
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((total, float(norm)))
    return steps
