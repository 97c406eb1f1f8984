import torch
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
history = []
for step in range(2000):
    x = torch.randn(1024, 512, device="cuda")
    out = net(x)
    loss = (out - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
    history.append(loss)
    if step % 100 == 0:
        print(step, sum(history).item() / len(history))
