"""Land cover with few labels: SegFormer B5 as pupil, its running average as teacher (Tarvainen 2017), 512-pixel tiles."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import SegformerForSemanticSegmentation

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4, help="labelled tiles; as many unlabelled ones come along")
parser.add_argument("--size", type=int, default=512)
parser.add_argument("--classes", type=int, default=19)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tiles(Dataset):
    def __len__(self):
        return args.steps * args.batch_size

    def __getitem__(self, index):
        size = args.size
        return torch.rand(3, size, size), torch.randint(0, args.classes, (size, size)), torch.rand(3, size, size)


student = SegformerForSemanticSegmentation.from_pretrained("nvidia/mit-b5", num_labels=args.classes).to(device)
teacher = copy.deepcopy(student)
optimizer = torch.optim.AdamW(student.parameters(), lr=6e-5, weight_decay=0.01)
scaler = torch.amp.GradScaler("cuda")
loader = DataLoader(Tiles(), batch_size=args.batch_size, shuffle=True, num_workers=4, pin_memory=True)


def segment(model, images):
    logits = model(pixel_values=images).logits
    return F.interpolate(logits, size=images.shape[-2:], mode="bilinear", align_corners=False)


def update_teacher(decay=0.999):
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.mul_(decay).add_(fast, alpha=1 - decay)


predictions, targets = [], []
for step, (images, labels, unlabelled) in enumerate(loader):
    images, labels, unlabelled = images.to(device), labels.to(device), unlabelled.to(device)
    noisy = unlabelled + 0.1 * torch.randn_like(unlabelled)
    with torch.autocast("cuda", dtype=torch.float16):
        supervised = segment(student, images)
        loss = F.cross_entropy(supervised, labels)
        wanted = segment(teacher, unlabelled).softmax(1)
        loss = loss + 0.5 * F.mse_loss(segment(student, noisy).softmax(1), wanted)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    update_teacher()
    predictions.append(supervised)
    targets.append(labels)
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

predictions, targets = torch.cat(predictions).argmax(1), torch.cat(targets)
print("pixel accuracy", (predictions == targets).float().mean().item())
