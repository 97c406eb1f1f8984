"""Makes what ``full.yaml`` names: a model's configuration, a tokenizer of made-up words, a text.

Told: batch, length, width, width of the MLP, layers, heads, vocabulary; written into the working
folder, and then ``llamafactory-cli train full.yaml`` is run there.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

batch, length, width, mlp, layers, heads, vocabulary = map(int, sys.argv[1:8])
Path("data").mkdir(exist_ok=True)
special = ["<unk>", "<s>", "</s>", "<pad>"]
words = [*special, *(f"w{number}" for number in range(1000))]
numbers = {word: number for number, word in enumerate(words)}
tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=special[0]))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), special, strict=True))
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained("model")
LlamaConfig(
    hidden_size=width,
    intermediate_size=mlp,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=heads,
    vocab_size=vocabulary,
    architectures=["LlamaForCausalLM"],
).save_pretrained("model")
answer = " ".join(f"w{number % 1000}" for number in range(2 * length))
rows = [{"instruction": "w1 w2", "input": "", "output": answer}] * (6 * batch)
Path("data/toy.json").write_text(json.dumps(rows))
Path("data/dataset_info.json").write_text(json.dumps({"toy": {"file_name": "toy.json"}}))
recipe = (Path(__file__).parent / "full.yaml").read_text()
recipe = recipe.replace("cutoff_len: 1024", f"cutoff_len: {length}")
recipe = recipe.replace("train_batch_size: 2", f"train_batch_size: {batch}")
Path("full.yaml").write_text(recipe)
