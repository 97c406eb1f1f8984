"""Moths: ConvNeXt base of timm at 384 pixels, 1,200 species, in Lightning."""

import argparse

import lightning as L
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--model", default="convnext_base.fb_in22k_ft_in1k_384")
parser.add_argument("--size", type=int, default=384)
parser.add_argument("--precision", default="bf16-mixed")
args = parser.parse_args()


class Moths(Dataset):
    def __len__(self):
        return 4 * args.batch_size

    def __getitem__(self, index):
        return torch.rand(3, args.size, args.size), index % 1200


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model(args.model, pretrained=True, num_classes=1200, drop_path_rate=0.2)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels, label_smoothing=0.1)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        self.log("val_acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-5, weight_decay=0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)}


trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    precision=args.precision,
    max_epochs=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(
    Classifier(),
    DataLoader(Moths(), batch_size=args.batch_size, shuffle=True),
    DataLoader(Moths(), batch_size=2 * args.batch_size),
)
