"""Models of ``transformers``, tiny, each trained two steps for real and pretended."""

import torch
import transformers

PROGRAMS = {}
SMALL = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def train(model, device, **inputs):
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        batch = {name: x.to(device) for name, x in inputs.items()}
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def ids(*shape):
    return torch.full(shape or (2, 256), 3, dtype=torch.int64)


def causal(device, kind, *, experts=None, attention="sdpa", tokens=256, **more):
    name = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, name)(**{**SMALL, "use_cache": False, **more})
    config._attn_implementation = attention
    if experts:
        config._experts_implementation = experts
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    train(model, device, input_ids=ids(2, tokens), labels=ids(2, tokens))


@program
def gpt2(device):
    config = transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1024)
    train(transformers.GPT2LMHeadModel(config), device, input_ids=ids(), labels=ids())


@program
def llama_eager(device):
    causal(device, "Llama", attention="eager")


@program
def llama_checkpointed(device):
    config = transformers.LlamaConfig(**SMALL, use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model, device, input_ids=ids(), labels=ids(), attention_mask=torch.ones_like(ids()))


@program
def gemma2(device):
    causal(device, "Gemma2", sliding_window=64, attention="eager")


@program
def gemma3(device):
    causal(device, "Gemma3", sliding_window=64)


EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}


@program
def mixtral_grouped(device):
    causal(device, "Mixtral", experts="grouped_mm", **EXPERTS)


@program
def mixtral_batched(device):
    causal(device, "Mixtral", experts="batched_mm", tokens=8, **EXPERTS)


@program
def qwen3_moe_grouped(device):
    causal(device, "Qwen3Moe", experts="grouped_mm", moe_intermediate_size=128, **EXPERTS)


@program
def gpt_oss(device):
    causal(device, "GptOss", experts="grouped_mm", sliding_window=64, attention="eager", **EXPERTS)


@program
def deepseek_v3(device):
    causal(
        device, "DeepseekV3", experts="grouped_mm", moe_intermediate_size=64, n_routed_experts=4,
        n_group=1, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, kv_lora_rank=32,
        q_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
        num_key_value_heads=4, head_dim=16,
    )  # fmt: skip


@program
def bert_classification(device):
    config = transformers.BertConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=1024, num_labels=3,
    )  # fmt: skip
    mask = torch.ones(8, 128, dtype=torch.int64)
    model = transformers.BertForSequenceClassification(config)
    labels = torch.zeros(8, dtype=torch.int64)
    train(model, device, input_ids=ids(8, 128), attention_mask=mask, labels=labels)


@program
def t5(device):
    config = transformers.T5Config(
        d_model=128, d_ff=512, d_kv=32, num_layers=2, num_heads=4, vocab_size=1024,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    train(model, device, input_ids=ids(), labels=ids(2, 64))


@program
def vit(device):
    config = transformers.ViTConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        image_size=64, patch_size=8,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    images, labels = torch.randn(8, 3, 64, 64), torch.zeros(8, dtype=torch.int64)
    train(model, device, pixel_values=images, labels=labels)


@program
def resnet(device):
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    images, labels = torch.randn(8, 3, 64, 64), torch.zeros(8, dtype=torch.int64)
    train(model, device, pixel_values=images, labels=labels)
