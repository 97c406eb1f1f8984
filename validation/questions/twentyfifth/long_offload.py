"""Continue training of a Llama on long texts on ONE card: checkpointed blocks whose inputs go to pinned host memory."""
import argparse

import torch
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

cli = argparse.ArgumentParser()
cli.add_argument("--model", default="meta-llama/Llama-3.2-3B")
cli.add_argument("--ctx", type=int, default=65536)
cli.add_argument("--pieces", type=int, default=32, help="pieces of the loss")
cli.add_argument("--no-offload", action="store_true")
cli.add_argument("--steps", type=int, default=20)
opt = cli.parse_args()

config = AutoConfig.from_pretrained(opt.model)
model = AutoModelForCausalLM.from_pretrained(opt.model, config=config, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
model.cuda().train()
model.config.use_cache = False
body, head = model.model, model.lm_head


def wrap(layer):
    inner = layer.forward

    def forward(hidden_states, *args, **kwargs):
        def run(h):
            return inner(h, *args, **kwargs)

        if opt.no_offload:
            return checkpoint(run, hidden_states, use_reentrant=False)
        with save_on_cpu(pin_memory=True):
            return checkpoint(run, hidden_states, use_reentrant=True)

    layer.forward = forward


for layer in body.layers:
    wrap(layer)


def piece_loss(h, y):
    return F.cross_entropy(head(h).float(), y, reduction="sum")


# the update happens in backward, so that no two gradients live at once
optimizers = {p: torch.optim.AdamW([p], lr=1e-5, weight_decay=0.0, foreach=False) for p in model.parameters()}


def update(p):
    optimizers[p].step()
    optimizers[p].zero_grad(set_to_none=True)


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)

for step in range(opt.steps):
    ids = torch.randint(0, config.vocab_size, (1, opt.ctx + 1), device="cuda")
    hidden = body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[0]
    labels = ids[0, 1:]
    total = 0.0
    for h, y in zip(hidden.chunk(opt.pieces), labels.chunk(opt.pieces)):
        total = total + checkpoint(piece_loss, h, y, use_reentrant=False)
    loss = total / opt.ctx
    loss.backward()
    print(step, loss.item(), f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
