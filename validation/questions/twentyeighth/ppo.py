import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
policy = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-large").cuda()
critic = AutoModelForSequenceClassification.from_pretrained("openai-community/gpt2-large", num_labels=1).cuda()
critic.config.pad_token_id = 50256
reference = AutoModelForCausalLM.from_pretrained("openai-community/gpt2-large").cuda().requires_grad_(False)
opt = torch.optim.AdamW([*policy.parameters(), *critic.parameters()], lr=1e-6)
for step in range(3):
    ids = torch.randint(0, 50000, (8, 512), device="cuda")
    with torch.no_grad():
        ref = reference(ids).logits.log_softmax(-1).gather(-1, ids[..., None])
    new = policy(ids).logits.log_softmax(-1).gather(-1, ids[..., None])
    value = critic(ids).logits
    ratio = (new - ref).exp()
    advantage = torch.randn_like(ratio)
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() + value.square().mean() + 0.05 * (new - ref).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
