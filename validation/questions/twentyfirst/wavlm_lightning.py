"""Which of seven moods does a caller have? WavLM large on clips of 12 seconds, in Lightning, weighted sum of layers."""

import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import WavLMModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--seconds", type=float, default=12.0)
parser.add_argument("--model", default="microsoft/wavlm-large")
parser.add_argument("--freeze-encoder", action="store_true", help="only layer weights and head learn")
parser.add_argument("--precision", default="16-mixed")
args = parser.parse_args()

MOODS = 7


class Calls(Dataset):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches * args.batch_size

    def __getitem__(self, index):
        return torch.randn(int(16000 * args.seconds)), index % MOODS


class MoodClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.wavlm = WavLMModel.from_pretrained(args.model)
        self.wavlm.feature_extractor._freeze_parameters()
        if args.freeze_encoder:
            for parameter in self.wavlm.parameters():
                parameter.requires_grad = False
        config = self.wavlm.config
        self.layer_weights = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        width = 2 * config.hidden_size
        self.head = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, MOODS))
        self.train_outputs, self.val_outputs = [], []

    def forward(self, waves):
        states = self.wavlm(waves, output_hidden_states=True).hidden_states
        states = torch.stack(states, dim=0)
        weights = self.layer_weights.softmax(0).view(-1, 1, 1, 1)
        mixed = (weights * states).sum(0)
        return self.head(torch.cat([mixed.mean(1), mixed.std(1)], dim=-1))

    def training_step(self, batch, batch_idx):
        waves, labels = batch
        logits = self(waves)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        self.train_outputs.append({"loss": loss, "logits": logits, "labels": labels})
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        logits = torch.cat([each["logits"] for each in self.train_outputs])
        labels = torch.cat([each["labels"] for each in self.train_outputs])
        self.log("train_acc", (logits.argmax(1) == labels).float().mean())
        self.train_outputs.clear()

    def validation_step(self, batch, batch_idx):
        waves, labels = batch
        logits = self(waves)
        self.log("val_acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        slow = [p for p in self.wavlm.parameters() if p.requires_grad]
        groups = [{"params": [self.layer_weights, *self.head.parameters()], "lr": 1e-3}]
        if slow:
            groups.append({"params": slow, "lr": 1e-5})
        return torch.optim.AdamW(groups, weight_decay=0.01)


trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    precision=args.precision,
    max_epochs=1,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    num_sanity_val_steps=1,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(
    MoodClassifier(),
    DataLoader(Calls(4), batch_size=args.batch_size, shuffle=True),
    DataLoader(Calls(1), batch_size=args.batch_size),
)
