"""Roofs from the air, 1024 x 1024, SegFormer B4. Trains fine; dies in the validation after the first epoch."""
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import SegformerConfig, SegformerForSemanticSegmentation

config = SegformerConfig(depths=[3, 8, 27, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=9)
model = SegformerForSemanticSegmentation(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
scaler = torch.amp.GradScaler("cuda")


def tiles(n):
    return TensorDataset(torch.rand(n, 3, 1024, 1024), torch.randint(0, 9, (n, 1024, 1024)))


train = DataLoader(tiles(8), batch_size=2, shuffle=True)
val = DataLoader(tiles(24), batch_size=4)


def validate():
    model.eval()
    all_logits, all_labels = [], []
    for images, labels in val:
        with torch.autocast("cuda", torch.float16):
            out = model(images.cuda(), labels=labels.cuda())
        logits = torch.nn.functional.interpolate(out.logits.float(), size=(1024, 1024), mode="bilinear")
        all_logits.append(logits)
        all_labels.append(labels)
    logits, labels = torch.cat(all_logits), torch.cat(all_labels).cuda()
    accuracy = (logits.argmax(1) == labels).float().mean()
    model.train()
    return accuracy.item()


for epoch in range(2):
    for images, labels in train:
        with torch.autocast("cuda", torch.float16):
            loss = model(images.cuda(), labels=labels.cuda()).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print("loss", loss.item())
    print("epoch", epoch, "accuracy", validate())
