"""Forecasts of load, a transformer over 2,048 quarter hours, by Lightning."""
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(L.LightningModule):
    def __init__(self, width=768, depth=12, heads=12, channels=64):
        super().__init__()
        self.inp = nn.Linear(channels, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth)
        self.out = nn.Linear(width, channels)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.huber_loss(self.out(self.body(self.inp(x))), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


if __name__ == "__main__":
    data = TensorDataset(torch.randn(256, 2048, 64), torch.randn(256, 2048, 64))
    trainer = L.Trainer(accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, accumulate_grad_batches=2,
                        gradient_clip_val=1.0, logger=False, enable_checkpointing=False)
    trainer.fit(Forecaster(), DataLoader(data, batch_size=16, shuffle=True))
