"""Lightning's Trainer with bf16 autocast on a language model of its own making.

Told: batch, length, width, layers, vocabulary.
"""

import sys

import lightning
import torch
from torch import nn

batch, length, width, layers, vocabulary = map(int, sys.argv[1:6])


class Task(lightning.LightningModule):
    """A model and its loss."""

    def __init__(self) -> None:
        """Make both ends and what is between."""
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def training_step(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch of token numbers."""
        x = self.embed(ids)
        for layer in self.layers:
            x = x + nn.functional.relu(layer(x))
        logits = self.head(x)
        return nn.functional.cross_entropy(logits.view(-1, vocabulary), ids.view(-1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


data = torch.utils.data.DataLoader(
    torch.randint(0, vocabulary, (4 * batch, length)), batch_size=batch
)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    max_steps=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Task(), data)
