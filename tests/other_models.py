"""Tiny models beside the decoders of ``samples``, and ragged masked batches for every task."""

import torch

from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.models.config import default_task, read_config
from brimful.models.module import read_factory
from brimful.values.job import plain_job

SHAPE = {"d_model": 32, "d_kv": 8, "d_ff": 80, "num_heads": 4, "vocab_size": 97}
CONFIGS = {
    "bert": {
        "model_type": "bert",
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 97,
        "max_position_embeddings": 512,
        "id2label": {"0": "no", "1": "maybe", "2": "yes"},
    },
    "t5": {
        "model_type": "t5",
        **SHAPE,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "t5-untied": {
        "model_type": "t5",
        **SHAPE,
        "num_layers": 2,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "bart": {
        "model_type": "bart",
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 80,
        "decoder_ffn_dim": 80,
        "vocab_size": 97,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 2,
        "pad_token_id": 1,
    },
    "switch": {
        "model_type": "switch_transformers",
        **SHAPE,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 4,
        "expert_capacity": 5,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
}
CNN = "user_modules:cnn"


def make_other_model(name, **changes):
    if ":" in name:
        return read_factory(name)
    return read_config(f"tiny-{name}", {**CONFIGS[name], **changes})


def make_other_job(name, **changes):
    model = changes.pop("model", None) or make_other_model(name)
    fields = {
        "model": model,
        "task": default_task(model),
        "packing": "none",
        "seq_len": 1 if ":" in name else 24,
        "global_batch": 4,
        "num_steps": 5,
        "learning_rate": 1e-2,
        "seed": 3,
    }
    return plain_job(**{**fields, **changes})


def ragged(job, *, step):
    """Make a step's whole batch: rows end early, one label in four is masked."""
    generator = torch.Generator().manual_seed(100 + step)
    if job.task == "module":
        inputs = torch.randn((job.global_batch, 3, 8, 8), generator=generator)
        labels = torch.randint(0, 5, (job.global_batch,), generator=generator)
        labels[-1] = IGNORE_INDEX
        return Batch(inputs, labels)
    shape = (job.global_batch, job.seq_len)
    inputs = torch.randint(1, job.model.vocab_size, shape, generator=generator)
    segments = torch.ones(shape, dtype=torch.int32)
    for row in range(job.global_batch):
        segments[row, job.seq_len - 5 * row :] = 0
    inputs[segments == 0] = 0
    if job.task == "seq2seq":
        labels = torch.randint(1, job.model.vocab_size, shape, generator=generator)
        for row in range(job.global_batch):
            labels[row, job.seq_len - 3 * row - 1 :] = IGNORE_INDEX
        return Batch(inputs, labels, segments)
    labels = torch.randint(0, 3, shape[:1], generator=generator)
    labels[1] = IGNORE_INDEX
    return Batch(inputs, labels, segments)


def cut(batch, size):
    """Cut a whole batch into micro-batches."""
    parts = zip(
        *(x.split(size) if x is not None else [None] * (len(batch.inputs) // size) for x in batch),
        strict=True,
    )
    return [Batch(*part) for part in parts]
