"""Small Trainers that are watched."""

SHAPE = {
    "vocab_size": 2000,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, use_cache=False))


def sentences(lengths):
    import torch

    draw = torch.Generator().manual_seed(1)
    texts = [torch.randint(1, SHAPE["vocab_size"], (n,), generator=draw).tolist() for n in lengths]
    return [{"input_ids": ids, "labels": ids} for ids in texts]


def padded(samples):
    """Collate sentences of several lengths: zeros behind, masked."""
    import torch

    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    batch = {name: torch.full((len(samples), longest), fill) for name, fill in rows.items()}
    for row, sample in enumerate(samples):
        ids = torch.tensor(sample["input_ids"])
        batch["input_ids"][row, : len(ids)] = batch["labels"][row, : len(ids)] = ids
        batch["attention_mask"][row, : len(ids)] = 1
    return batch


def checkpointing_name():
    """Return what transformers 5.23 calls the switch, and those before it."""
    from dataclasses import fields

    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    new = "activation_checkpointing"
    return new if new in known else "gradient_checkpointing"


def trainer(  # noqa: PLR0913 - what a test may replace
    folder, *, model=None, kind=None, callbacks=(), lengths=(192,) * 32, checkpointing=False,
    **settings,
):  # fmt: skip
    from transformers import Trainer, TrainingArguments

    if checkpointing:
        settings[checkpointing_name()] = True
    arguments = TrainingArguments(**{
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": 4,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "dataloader_pin_memory": False, **settings,
    })  # fmt: skip
    return (kind or Trainer)(
        model=model or llama(),
        args=arguments,
        train_dataset=sentences(lengths),
        data_collator=padded,
        callbacks=list(callbacks),
    )
