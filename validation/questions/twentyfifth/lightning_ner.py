import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForTokenClassification, get_linear_schedule_with_warmup

NAME = "FacebookAI/xlm-roberta-large"
LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


class Fake(Dataset):
    """stands for my real CoNLL data, same shapes: 512 word pieces a row"""

    def __init__(self, n, length=512):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {
            "input_ids": torch.randint(10, 250_000, (self.length,), generator=g),
            "attention_mask": torch.ones(self.length, dtype=torch.long),
            "labels": torch.randint(0, len(LABELS), (self.length,), generator=g),
        }


class Tagger(L.LightningModule):
    def __init__(self, lr=2e-5, steps=2000):
        super().__init__()
        self.save_hyperparameters()
        self.model = AutoModelForTokenClassification.from_pretrained(NAME, num_labels=len(LABELS))
        self.model.train()

    def training_step(self, batch, _):
        out = self.model(**batch)
        self.log("train_loss", out.loss, prog_bar=True)
        return out.loss

    def validation_step(self, batch, _):
        out = self.model(**batch)
        hit = (out.logits.argmax(-1) == batch["labels"]).float().mean()
        self.log_dict({"val_loss": out.loss, "val_acc": hit})

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        sched = get_linear_schedule_with_warmup(opt, 100, self.hparams.steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(1)
    train = DataLoader(Fake(32_000), batch_size=32, shuffle=True, num_workers=4)
    val = DataLoader(Fake(512), batch_size=64)
    trainer = L.Trainer(
        max_steps=2000,
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=500,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Tagger(), train, val)
