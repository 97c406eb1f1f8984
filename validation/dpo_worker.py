"""A process that computes TRL's own loss: ``dpo_worker.py JOBS FOLDER`` writes FOLDER/trl.json.

For each job: the reference's weights are ours as built, the trained model's are moved by our draw,
and everything behind that is TRL's: its tokenising, its collator, its reference, its loss.

Losses: ``sigmoid`` without label smoothing. With it, TRL 1.16 leaves ``sigmoid`` as it is, without
a word; ``aot`` smooths, and of one pair alone, where there is nothing to sort, it is conservative
DPO: so pairs come one by one, and their losses are averaged.
"""

import sys
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
from cases import Case

from brimful.process.library_output import quiet_libraries

quiet_libraries()
warnings.simplefilter("ignore")

import torch  # noqa: E402
from dpo_pairs import ALPHA, PAIRS, RANK, TOKENIZER, Loss, move, norm_of, start  # noqa: E402


def main() -> None:
    """Read cases, write losses."""
    asked, folder = Path(sys.argv[1]), Path(sys.argv[2])
    told = [
        _their_loss(c, folder) for c in msgspec.json.decode(asked.read_bytes(), type=list[Case])
    ]
    (folder / "trl.json").write_bytes(msgspec.json.encode(told))


def _their_loss(case: Case, folder: Path) -> Loss:
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer

    program = start(case)
    model = _plain_model(case, program.model)
    preference = case.job.preference
    assert preference is not None
    is_smoothed, num_pairs = preference.label_smoothing > 0, case.job.global_batch
    trainer = trl.DPOTrainer(
        model=model,
        ref_model=None if case.job.adapter else deepcopy(model),
        args=trl.DPOConfig(
            output_dir=str(folder / "out"),
            loss_type=["aot" if is_smoothed else "sigmoid"],
            beta=preference.beta,
            label_smoothing=preference.label_smoothing,
            per_device_train_batch_size=1 if is_smoothed else num_pairs,
            max_length=case.job.seq_len,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=load_dataset("json", data_files=str(folder / PAIRS), split="train"),
        processing_class=AutoTokenizer.from_pretrained(folder / TOKENIZER),
    )
    move(program.model)
    _give(trainer.model, program.model.state_dict())
    batches = list(trainer.get_train_dataloader())
    assert sum(len(batch["input_ids"]) for batch in batches) == 2 * num_pairs
    trainer.model.train()
    total = 0.0
    for batch in batches:
        loss = trainer._compute_loss(trainer.model, batch, return_outputs=False)  # noqa: SLF001
        (loss / len(batches)).backward()
        total += float(loss.detach()) / len(batches)
    return Loss(total, norm_of(trainer.model))


def _plain_model(case: Case, built: Any) -> Any:
    """Return a model of transformers, or PEFT's around one, with our first weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = case.job.model
    config = AutoConfig.for_model(spec.model_type, **spec.hf_config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    if case.job.adapter is not None:
        import peft

        settings = peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, settings)
    _give(model, built.state_dict())
    return model.train()


def _give(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Load our weights; PEFT's own model calls them by a longer name, and has none but ours."""
    prefix = "base_model.model." if hasattr(model, "peft_config") else ""
    given = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    found = model.load_state_dict(given, strict=False)
    missing = [name for name in found.missing_keys if ".ref." not in name]  # TRL's own copy
    assert not missing, missing
    assert not found.unexpected_keys, found.unexpected_keys


if __name__ == "__main__":
    main()
