"""A sentence encoder learns by in-batch negatives: modules of sentence-transformers, own loop."""

import tempfile

import torch
from sentence_transformers import SentenceTransformer, losses, models
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(30000))]
backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
backend.pre_tokenizer = Whitespace()
folder = tempfile.mkdtemp()
names = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
BertModel(BertConfig(vocab_size=len(words))).save_pretrained(folder)

word = models.Transformer(folder, max_seq_length=256)
model = SentenceTransformer(modules=[word, models.Pooling(768, pooling_mode="mean")], device="cuda")
criterion = losses.MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
model.train()


def sentences(num, longest):
    lengths = torch.randint(longest // 4, longest, (num,)).tolist()
    return [" ".join(f"w{i}" for i in torch.randint(30000, (n,)).tolist()) for n in lengths]


for step in range(5):
    pairs = [model.preprocess(sentences(128, longest)) for longest in (32, 240)]
    features = [{k: v.cuda() if torch.is_tensor(v) else v for k, v in p.items()} for p in pairs]
    loss = criterion(features, None)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
