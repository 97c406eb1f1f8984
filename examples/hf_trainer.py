"""Fine-tune a small random Llama with the Hugging Face Trainer, on sentences made in memory.

The Trainer finds the device by itself. Run it, or ask what it would need on a GPU you do not have::

    python examples/hf_trainer.py
    brimful pretend --gpu t4 -- examples/hf_trainer.py --batch 8
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    """Random sentences of one length, with their attention masks and labels."""

    def __init__(self, num_sentences: int, num_tokens: int, vocab_size: int) -> None:
        self.ids = torch.randint(vocab_size, (num_sentences, num_tokens))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=320)
    args = parser.parse_args()

    set_seed(0)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            learning_rate=1e-4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=settings,
            train_dataset=Sentences(args.steps * args.batch, args.tokens, config.vocab_size),
        )
        trainer.train()


if __name__ == "__main__":
    main()
