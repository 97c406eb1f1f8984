"""Fine-tune a small random Llama with LoRA, with PEFT and a loop of one's own.

It says ``cuda`` where there is one. Run it, or ask what it would need on a GPU you do not have::

    python examples/lora_peft.py
    brimful pretend --gpu a100-40gb -- examples/lora_peft.py --rank 16
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=6,
        num_attention_heads=5,
        num_key_value_heads=5,
        use_cache=False,
    )
    lora = LoraConfig(
        r=args.rank,
        lora_alpha=2 * args.rank,
        target_modules=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(LlamaForCausalLM(config), lora).to(device)
    model.print_trainable_parameters()

    ids = torch.randint(config.vocab_size, (args.steps * args.batch, args.tokens))
    batches = DataLoader(TensorDataset(ids), batch_size=args.batch, shuffle=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    model.train()
    for step, (batch,) in enumerate(batches):
        inputs = batch.to(device)
        loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
