"""The slow and obvious training loop that the build path must equal: no switches, no tricks."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

BETAS, EPSILON = (0.9, 0.95), 1e-8
MASKED = -100


def ragged_batch(job, *, step):
    """Make a step's inputs and next-token labels; rows end early, the last is masked whole."""
    generator = torch.Generator().manual_seed(100 + step)
    shape = (job.global_batch, job.seq_len + 1)
    tokens = torch.randint(0, job.model.vocab_size, shape, generator=generator)
    input_ids, labels = tokens[:, :-1], tokens[:, 1:].clone()
    for row in range(job.global_batch):
        labels[row, job.seq_len - 5 * row :] = MASKED
        labels[row, :row] = MASKED
    labels[-1] = MASKED
    return input_ids, labels


def ragged_batches(job, strategy, *, step):
    """Make the same in micro-batches."""
    from brimful.build.batch import Batch

    rows = (part.split(strategy.micro_batch) for part in ragged_batch(job, step=step))
    return [Batch(*pair) for pair in zip(*rows, strict=True)]


def ragged_step(program, *, step, part=lambda batches: batches):
    """Train a step of them, or of a part of them; returns its loss and norm."""
    from brimful.build.batch import count_targets
    from brimful.build.step import train_step

    job = program.job
    batches = ragged_batches(job, program.strategy, step=step)
    done = train_step(
        program,
        part(batches),
        num_targets=count_targets(batches),
        learning_rate=job.learning_rate,
    )
    return float(done.loss), float(done.grad_norm)


def plain_model(job, weights):
    """Build the model as anybody would, holding the given weights."""
    fields = {**job.model.hf_config, "use_cache": False}
    if job.model.model_type == "gpt2":
        fields |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = AutoConfig.for_model(job.model.model_type, **fields)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    model.load_state_dict(weights)
    return model.train()


def plain_run(job, weights, *, num_steps):
    """Train with whole batches and whole logits; returns (loss, gradient norm) of every step."""
    model = plain_model(job, weights)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": job.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.learning_rate, betas=BETAS, eps=EPSILON)
    return [_step(job, model, optimizer, step) for step in range(num_steps)]


def _step(job, model, optimizer, step):
    input_ids, labels = ragged_batch(job, step=step)
    logits = model(input_ids=input_ids).logits.flatten(0, 1)
    chosen = labels.flatten() != MASKED
    log_probabilities = logits.log_softmax(-1)[chosen]
    loss = -log_probabilities.gather(1, labels.flatten()[chosen, None]).sum() / chosen.sum()
    optimizer.zero_grad()
    loss.backward()
    squares = torch.stack([p.grad.pow(2).sum() for p in model.parameters()])
    norm = squares.sum().sqrt()
    if job.clip and norm > job.clip:
        for parameter in model.parameters():
            parameter.grad *= job.clip / norm
    optimizer.step()
    return float(loss.detach()), float(norm)
