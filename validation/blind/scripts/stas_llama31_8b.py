"""Llama 3.1 8B trained by DeepSpeed on made-up tokens, as the benchmark of "when to upgrade GPUs" does."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig

parser = argparse.ArgumentParser()
parser.add_argument("--seq", type=int, default=8192)
parser.add_argument("--zero", type=int, default=3)
parser.add_argument("--offload", type=int, default=1)
parser.add_argument("--checkpoints", type=int, default=1)
parser.add_argument("--liger", type=int, default=1)
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()

deepspeed.init_distributed()
device = torch.device("cuda", args.local_rank)
torch.cuda.set_device(device)
if args.liger:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
from transformers import LlamaForCausalLM  # noqa: E402

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
config._attn_implementation = args.attention
model = LlamaForCausalLM(config).to(torch.bfloat16)
if args.checkpoints:
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
zero = {"stage": args.zero, "overlap_comm": True, "contiguous_gradients": True}
if args.offload:
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8}},
        "zero_optimization": zero,
    },
)
for _ in range(3):
    ids = torch.randint(0, 128000, (1, args.seq)).to(device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
print(torch.cuda.max_memory_reserved() / 2**30)
