"""LoRA of SDXL's U-Net on photographs of my pots; after diffusers' train_text_to_image_lora_sdxl.py, cut down."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer, CLIPTextModel, CLIPTextModelWithProjection

parser = argparse.ArgumentParser()
parser.add_argument("--pretrained_model_name_or_path", default="stabilityai/stable-diffusion-xl-base-1.0")
parser.add_argument("--pretrained_vae_model_name_or_path", default="madebyollin/sdxl-vae-fp16-fix")
parser.add_argument("--resolution", type=int, default=1024)
parser.add_argument("--train_batch_size", type=int, default=1)
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--mixed_precision", default="fp16")
parser.add_argument("--learning_rate", type=float, default=1e-4)
parser.add_argument("--max_train_steps", type=int, default=3)
args = parser.parse_args()

accelerator = Accelerator(mixed_precision=args.mixed_precision)
base = args.pretrained_model_name_or_path
tokenizers = [AutoTokenizer.from_pretrained(base, subfolder=each, use_fast=False) for each in ("tokenizer", "tokenizer_2")]
text_one = CLIPTextModel.from_pretrained(base, subfolder="text_encoder")
text_two = CLIPTextModelWithProjection.from_pretrained(base, subfolder="text_encoder_2")
vae = AutoencoderKL.from_pretrained(args.pretrained_vae_model_name_or_path)
unet = UNet2DConditionModel.from_pretrained(base, subfolder="unet")
scheduler = DDPMScheduler.from_pretrained(base, subfolder="scheduler")

for frozen in (vae, text_one, text_two, unet):
    frozen.requires_grad_(False)

dtype = torch.float16 if args.mixed_precision == "fp16" else torch.bfloat16
unet.to(accelerator.device, dtype=dtype)
vae.to(accelerator.device, dtype=dtype)
text_one.to(accelerator.device, dtype=dtype)
text_two.to(accelerator.device, dtype=dtype)

unet.add_adapter(
    LoraConfig(
        r=args.rank,
        lora_alpha=args.rank,
        init_lora_weights="gaussian",
        target_modules=["to_k", "to_q", "to_v", "to_out.0"],
    )
)
if args.mixed_precision == "fp16":
    for parameter in unet.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
if args.gradient_checkpointing:
    unet.enable_gradient_checkpointing()


class Pots(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {
            "pixel_values": torch.rand(3, args.resolution, args.resolution) * 2 - 1,
            "prompt": "a photo of a salt-glazed stoneware pot, studio light",
        }


def encode(prompts):
    states = []
    for tokenizer, encoder in zip(tokenizers, (text_one, text_two), strict=True):
        ids = tokenizer(
            prompts, padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
        ).input_ids
        output = encoder(ids.to(accelerator.device), output_hidden_states=True)
        pooled = output[0]
        states.append(output.hidden_states[-2])
    return torch.cat(states, dim=-1), pooled


trained = [p for p in unet.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=args.learning_rate, weight_decay=1e-2)
loader = DataLoader(Pots(), batch_size=args.train_batch_size, shuffle=True)
unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)

unet.train()
for step, batch in enumerate(loader):
    if step >= args.max_train_steps:
        break
    with accelerator.accumulate(unet):
        with torch.no_grad():
            latents = vae.encode(batch["pixel_values"].to(dtype)).latent_dist.sample() * vae.config.scaling_factor
            prompt_embeds, pooled = encode(batch["prompt"])
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (latents.shape[0],), device=latents.device)
        noisy = scheduler.add_noise(latents, noise, timesteps.long())
        size = (args.resolution, args.resolution)
        time_ids = torch.tensor([[*size, 0, 0, *size]] * latents.shape[0], device=latents.device, dtype=dtype)
        predicted = unet(
            noisy,
            timesteps,
            prompt_embeds,
            added_cond_kwargs={"text_embeds": pooled, "time_ids": time_ids},
            return_dict=False,
        )[0]
        loss = F.mse_loss(predicted.float(), noise.float(), reduction="mean")
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step} loss {loss.detach().item():.4f}")
