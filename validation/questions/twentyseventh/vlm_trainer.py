"""Qwen2.5-VL 3B reads receipts: LoRA by PEFT and the Trainer, one picture of 1,008 x 756 a row, tower frozen."""
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments

NAME = "Qwen/Qwen2.5-VL-3B-Instruct"
GRID = (1, 54, 72)  # patches of 14 pixels
PATCHES = GRID[1] * GRID[2]
IMAGE_TOKENS = PATCHES // 4


class Receipts(Dataset):
    def __init__(self, config, n=64, text=400):
        self.n, self.text, self.config = n, text, config

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1000, 100000, (self.text,), generator=g)
        image = torch.full((IMAGE_TOKENS,), self.config.image_token_id)
        start = torch.tensor([self.config.vision_start_token_id])
        end = torch.tensor([self.config.vision_end_token_id])
        ids = torch.cat((words[:30], start, image, end, words[30:]))
        labels = ids.clone()
        labels[: 32 + IMAGE_TOKENS + 60] = -100
        kind = (ids == self.config.image_token_id).long()
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": labels,
            "mm_token_type_ids": kind,
            "pixel_values": torch.randn(PATCHES, 1176, generator=g),
            "image_grid_thw": torch.tensor([GRID]),
        }


def collate(rows):
    out = {k: torch.stack([r[k] for r in rows]) for k in ("input_ids", "attention_mask", "labels", "mm_token_type_ids")}
    out["pixel_values"] = torch.cat([r["pixel_values"] for r in rows])
    out["image_grid_thw"] = torch.cat([r["image_grid_thw"] for r in rows])
    return out


config = AutoConfig.from_pretrained(NAME)
model = Qwen2_5_VLForConditionalGeneration.from_pretrained(NAME, dtype=torch.bfloat16)
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05,
                                         target_modules=r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"))
model.print_trainable_parameters()
args = TrainingArguments(
    output_dir="/tmp/q27-receipts", per_device_train_batch_size=4, gradient_accumulation_steps=4, bf16=True,
    gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=1e-4,
    max_steps=20, logging_steps=1, save_strategy="no", remove_unused_columns=False, report_to=[], optim="adamw_torch",
)
Trainer(model=model, args=args, train_dataset=Receipts(config), data_collator=collate).train()
