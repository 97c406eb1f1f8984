"""Train a small model of random weights with ``torch.compile``, in plain PyTorch and transformers.

``python train.py --model llama --compile blocks --tokens 256``: it says ``cuda`` where there is
one, and knows nothing of who measures it.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 256
VOCABULARY = 2048


class Perceptron(nn.Module):
    """Layers of one width behind norms, as a classifier of vectors."""

    def __init__(self, num_layers: int) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(num_layers)
        )  # fmt: skip
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of the next token."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def transformer(kind: str, num_layers: int) -> nn.Module:
    """Return a decoder of transformers', of random weights."""
    import transformers

    sizes = {"vocab_size": VOCABULARY, "use_cache": False}
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            n_embd=WIDTH, n_layer=num_layers, n_head=4, n_positions=1024, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, **sizes,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    shape = {
        "hidden_size": WIDTH, "intermediate_size": 704, "num_hidden_layers": num_layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, **sizes,
    }  # fmt: skip
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=64, **shape))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Return the list of a model's blocks: its longest list of modules."""
    lists = [child for child in model.modules() if isinstance(child, nn.ModuleList)]
    return max(lists, key=len)


class Checkpointed(nn.Module):
    """A block whose activations are computed once more in backward."""

    def __init__(self, block: nn.Module) -> None:
        """Keep the block."""
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and keep what it was given alone."""
        return checkpoint(self.block, *args, use_reentrant=False, **kwargs)


def wrap_blocks(model: nn.Module, around: Callable[[nn.Module], Any]) -> None:
    """Put something around each block."""
    blocks = blocks_of(model)
    for i, block in enumerate(blocks):
        blocks[i] = around(block)


def build(args: argparse.Namespace) -> nn.Module:
    """Return the model with its adapters, its checkpoints and what of it is compiled."""
    is_plain = args.model == "perceptron"
    model = Perceptron(args.layers) if is_plain else transformer(args.model, args.layers)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu", getattr(torch, args.dtype))
    if args.checkpoint:
        wrap_blocks(model, Checkpointed)
    if args.compile == "blocks":
        wrap_blocks(model, torch.compile)
    elif args.compile == "module":
        model.compile()
    elif args.compile == "whole":
        model = torch.compile(model)
    return model


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of next tokens."""
    flat = logits[:, :-1].flatten(0, 1).float()
    return functional.cross_entropy(flat, ids[:, 1:].flatten())


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", choices=("perceptron", "gpt2", "llama", "qwen3"), default="llama")
    add("--compile", choices=("none", "whole", "module", "blocks"), default="whole")
    add("--compile-loss", action="store_true")
    add("--compile-optimizer", action="store_true")
    add("--checkpoint", action="store_true")
    add("--lora", action="store_true")
    add("--autocast", action="store_true", help="to bfloat16")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--layers", type=int, default=4)
    add("--batch", type=int, default=4)
    add("--tokens", type=int, default=256)
    add("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = build(args)
    device = next(model.parameters()).device
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    update = torch.compile(optimizer.step) if args.compile_optimizer else optimizer.step
    judge = torch.compile(loss_of) if args.compile_loss else loss_of
    for _ in range(args.steps):
        ids = torch.randint(VOCABULARY, (args.batch, args.tokens), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.autocast):
            out = model(ids)
            loss = judge(out if isinstance(out, Tensor) else out.logits, ids)
        del out
        loss.backward()
        update()
        optimizer.zero_grad()
        print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
