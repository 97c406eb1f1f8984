"""Phi-4-mini in full by DeepSpeed.

deepspeed --num_gpus 8 ds_train.py --deepspeed_config ds_zero2.json
"""

import argparse

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="microsoft/Phi-4-mini-instruct")
parser.add_argument("--seq-len", type=int, default=4096)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()


class Packed(Dataset):
    """Rows of seq_len tokens; made up until the tokenised corpus is mounted."""

    def __init__(self, vocab_size, seq_len, rows=4096):
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, vocab_size, (rows, seq_len), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main():
    deepspeed.init_distributed()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    model.train()

    data = Packed(len(tokenizer), args.seq_len)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=data
    )
    batches = iter(loader)
    for step in range(args.steps):
        for _ in range(engine.gradient_accumulation_steps()):
            batch = {key: value.to(engine.device) for key, value in next(batches).items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
