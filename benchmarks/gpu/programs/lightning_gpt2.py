"""GPT-2 by PyTorch Lightning in bf16-mixed with a cosine schedule."""

import tempfile

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


class LitGPT2(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT2LMHeadModel(GPT2Config())

    def training_step(self, batch, batch_idx):
        (ids,) = batch
        loss = self.model(input_ids=ids, labels=ids).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


pl.seed_everything(0)
loader = DataLoader(TensorDataset(torch.randint(50257, (256, 1024))), batch_size=16, shuffle=True)
trainer = pl.Trainer(
    max_steps=6, accelerator="gpu", devices=1, precision="bf16-mixed", gradient_clip_val=1.0,
    logger=False, enable_checkpointing=False, default_root_dir=tempfile.mkdtemp(),
)  # fmt: skip
trainer.fit(LitGPT2(), loader)
