"""DistributedDataParallel with one process, gradients as views of buckets: BERT-large, fp16."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29606"
)
torch.manual_seed(0)
torch.cuda.set_device(0)
dist.init_process_group("nccl")
config = BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    num_labels=3,
)  # fmt: skip
model = BertForSequenceClassification(config).cuda()
model = DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
model.train()
for step in range(5):
    ids = torch.randint(30522, (32, 256)).cuda(non_blocking=True)
    labels = torch.randint(3, (32,)).cuda(non_blocking=True)
    with torch.autocast("cuda", torch.float16):
        loss = model(input_ids=ids, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item())
dist.destroy_process_group()
