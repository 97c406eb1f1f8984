"""SFT of a Qwen3 1.7B with TRL and LoRA; the tokenizer is a stand-in so that nothing is fetched."""
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from trl import SFTConfig, SFTTrainer

words = ["<pad>", "<eos>", "<unk>"] + [f"w{i}" for i in range(5000)]
raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")

config = Qwen3Config(
    vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    pad_token_id=0, eos_token_id=1,
)
model = AutoModelForCausalLM.from_config(config)

text = " ".join(f"w{i % 5000}" for i in range(6000))
rows = Dataset.from_dict({"text": [text] * 400})

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="out-sft",
        max_length=4096,
        packing=False,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        gradient_checkpointing=False,
        bf16=True,
        learning_rate=2e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=rows,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
