"""torchtitan's own Trainer on a Llama 3 of eight layers: selective checkpointing of every second layer."""

import json
import os
import random
import tempfile
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torchtitan.config import ConfigManager
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.llama3 import TransformerModelArgs, llama3_args
from torchtitan.train import Trainer

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29607"
)
random.seed(0)
folder = tempfile.mkdtemp()
words = ["<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(31997))]
tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = Whitespace()
tokenizer.save(f"{folder}/tokenizer.json")
settings = json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"})
Path(folder, "tokenizer_config.json").write_text(settings)

texts = [" ".join(random.choices(words[3:], k=1000)) for _ in range(200)]
DATASETS["words"] = DatasetConfig(
    path="words",
    loader=lambda path: Dataset.from_dict({"text": texts}),
    sample_processor=lambda sample: sample["text"],
)
llama3_args["small"] = TransformerModelArgs(
    dim=1536, n_layers=8, n_heads=12, n_kv_heads=4, vocab_size=32000, rope_theta=500000
)
flags = {
    "job.dump_folder": folder, "model.flavor": "small", "model.hf_assets_path": folder,
    "training.dataset": "words", "training.seq_len": 4096, "training.local_batch_size": 2,
    "training.steps": 4, "metrics.log_freq": 1,
    "activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "2",
}  # fmt: skip
trainer = Trainer(ConfigManager().parse_args([f"--{k}={v}" for k, v in flags.items()]))
trainer.train()
trainer.close()
