"""wav2vec 2.0 large with a CTC head for Frisian, by Lightning."""
import argparse

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC


class Clips(Dataset):
    def __init__(self, n, seconds):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"input_values": torch.randn(16000 * self.seconds), "labels": torch.randint(1, 48, (180,))}


class Speech(L.LightningModule):
    def __init__(self, freeze):
        super().__init__()
        config = Wav2Vec2Config(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
            feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, vocab_size=48,
            ctc_loss_reduction="mean", ctc_zero_infinity=True, mask_time_prob=0.0, layerdrop=0.0,
        )
        self.model = Wav2Vec2ForCTC(config)
        if freeze:
            self.model.freeze_feature_encoder()
        self.val_logits = []

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        out = self.model(**batch, output_hidden_states=True)
        self.val_logits.append((out.logits, out.hidden_states))
        self.log("val_loss", out.loss)

    def on_validation_epoch_end(self):
        self.val_logits.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=1e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--freeze", action="store_true")
    args = parser.parse_args()
    train = DataLoader(Clips(256, args.seconds), batch_size=args.batch, shuffle=True, num_workers=4)
    valid = DataLoader(Clips(160, args.seconds), batch_size=args.batch, num_workers=4)
    trainer = L.Trainer(
        max_steps=6, val_check_interval=3, num_sanity_val_steps=0, precision="16-mixed", accelerator="gpu", devices=1,
        accumulate_grad_batches=1, enable_checkpointing=False, logger=False,
    )
    trainer.fit(Speech(args.freeze), train, valid)


if __name__ == "__main__":
    main()
