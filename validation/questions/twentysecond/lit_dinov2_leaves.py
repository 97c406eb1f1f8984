"""Lightning: DINOv2 large with a linear head on leaves (ten thousand species), two cards, bf16-mixed."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModel


class Leaves(Dataset):
    """Random pictures of the right size; the real ones are on the institute's share."""

    def __init__(self, n, size, species):
        self.n, self.size, self.species = n, size, species

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(3, self.size, self.size), i % self.species


class LeafModel(L.LightningModule):
    def __init__(self, backbone="facebook/dinov2-large", species=10000, lr=2e-5, frozen_blocks=8):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = AutoModel.from_pretrained(backbone)
        self.backbone.embeddings.requires_grad_(False)
        for block in self.backbone.encoder.layer[:frozen_blocks]:
            block.requires_grad_(False)
        self.head = nn.Linear(self.backbone.config.hidden_size, species)

    def forward(self, pixels):
        return self.head(self.backbone(pixel_values=pixels).last_hidden_state[:, 0])

    def training_step(self, batch, batch_idx):
        pixels, labels = batch
        loss = F.cross_entropy(self(pixels), labels, label_smoothing=0.1)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        trainable = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=self.hparams.lr, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=518)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    loader = DataLoader(Leaves(100_000, args.size, 10000), batch_size=args.batch, num_workers=4, pin_memory=True)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        precision="bf16-mixed",
        max_steps=args.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(LeafModel(), loader)


if __name__ == "__main__":
    main()
