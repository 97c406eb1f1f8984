"""LoRA on the language model of a small Qwen2.5-VL, pictures of one size, checkpointed, bf16."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

torch.manual_seed(0)
IMAGE, START, END = 151655, 151652, 151653
config = Qwen2_5_VLConfig(
    text_config={
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 16,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 152064,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24],
        },
    },
    vision_config={
        "depth": 16, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420,
        "out_hidden_size": 1536, "fullatt_block_indexes": [7, 15],
    },
    image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END,
)  # fmt: skip
model = Qwen2_5_VLForConditionalGeneration(config).to("cuda", torch.bfloat16)
lora = LoraConfig(
    r=16, lora_alpha=32, target_modules=r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj)"
)
model = get_peft_model(model, lora)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)

BATCH, SIDE = 4, 32
image = [START, *[IMAGE] * (SIDE * SIDE // 4), END]
for step in range(4):
    text = torch.randint(1000, 150000, (BATCH, 700))
    ids = torch.cat([torch.tensor([image] * BATCH), text], dim=1)
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(BATCH * SIDE * SIDE, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * BATCH),
        "mm_token_type_ids": (ids == IMAGE).int(),
        "labels": ids.masked_fill(ids == IMAGE, -100),
    }  # fmt: skip
    inputs = {name: value.cuda() for name, value in inputs.items()}
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
