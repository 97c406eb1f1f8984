"""Small programs that run for real on a CPU and on the pretend GPU: layers, tensors, autograd."""

import torch
from torch import nn
from torch.nn import functional

PROGRAMS = {}
ROWS, WIDTH, WIDE = 512, 256, 1024


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def kind_of(device):
    return torch.device(device).type


def mlp(device, *, depth=3, activation=nn.GELU):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDE), activation(), nn.Linear(WIDE, WIDTH)]
    return nn.Sequential(*layers).to(device)  # None: wherever it is


def batch(device, *shape):
    return torch.randn(*(shape or (ROWS, WIDTH)), device=device)


def train(model, optimizer, x, *, steps=2, loss=lambda y: y.pow(2).mean()):
    for _ in range(steps):
        loss(model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


def fit(model, device, *shape, **more):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, batch(device, *shape), **more)


# -- layers --


@program
def plain_mlp(device):
    fit(mlp(device), device)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64),
        nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


@program
def convolution(device):
    fit(convolutions().to(device), device, 8, 3, 64, 64)


@program
def convolution_channels_last(device):
    model = convolutions().to(device).to(memory_format=torch.channels_last)
    x = batch(device, 8, 3, 64, 64).to(memory_format=torch.channels_last)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), x)


@program
def convolution_transposed(device):
    model = nn.Sequential(
        nn.Conv2d(4, 32, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.GroupNorm(4, 32),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.Upsample(scale_factor=2),
        nn.Tanh(),
    ).to(device)  # fmt: skip
    fit(model, device, 8, 4, 64, 64)


@program
def dropout(device):
    first, second = mlp(device, depth=1), mlp(device, depth=1)
    model = nn.Sequential(first, nn.Dropout(0.1), second, nn.Dropout1d(0.5))
    fit(model, device, 2, ROWS, WIDTH)


@program
def evaluation_between_steps(device):
    model = nn.Sequential(mlp(device, depth=1), nn.Dropout(0.1), nn.LayerNorm(WIDTH)).to(device)
    fit(model, device, steps=1)
    model.eval()
    with torch.no_grad():
        model(batch(device, 4 * ROWS, WIDTH)).argmax(-1)
    with torch.inference_mode():
        model(batch(device, 4 * ROWS, WIDTH)).softmax(-1)
    model.train()
    fit(model, device, steps=1)


@program
def inference(device):
    model = nn.TransformerEncoderLayer(WIDTH, 4, WIDE, dropout=0.1, batch_first=True).to(device)
    x = batch(device, 4, 256, WIDTH)
    with torch.inference_mode():
        model(x)
        nn.RMSNorm(WIDTH).to(device)(x)
        functional.cosine_similarity(x, x)


@program
def embedding_bag(device):
    model = nn.EmbeddingBag(4096, 128, mode="mean").to(device)
    ids = torch.zeros(2048, 8, dtype=torch.int64, device=device)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), ids)


@program
def transformer_layer(device):
    model = nn.TransformerEncoderLayer(WIDTH, 4, WIDE, dropout=0.0, batch_first=True).to(device)
    fit(model, device, 4, 256, WIDTH)


# -- views, in-place operations, storages --


@program
def views_and_in_place(device):
    x = batch(device).requires_grad_()
    y = x.view(WIDTH, ROWS).t() * 2
    y = y.expand(4, ROWS, WIDTH).reshape(4, WIDTH, ROWS).transpose(1, 2).contiguous()
    y[:, ::2].mul_(3).add_(1)
    y[0].clamp_(min=0)
    y = y.unflatten(1, (2, -1)).flatten(0, 1).masked_fill_(torch.zeros_like(y[0, :1]).bool(), 1.0)
    first, second = y.chunk(2)
    (first * second.flip(0) + y.unbind()[0]).roll(1).tril().sum().backward()


@program
def splits_and_joins(device):
    x = batch(device, 4, ROWS, WIDTH).requires_grad_()
    parts = x.split([100, 156], dim=-1)
    y = torch.cat([part.exp() for part in parts], dim=-1)
    y = torch.stack([y, y.sin()]).movedim(0, 2).repeat(1, 1, 1, 2)
    y = functional.pad(y, (1, 1)).unfold(1, 2, 2).mean(-1)
    y.narrow(0, 0, 2).diagonal().sum().backward()


@program
def resized_storages(device):
    x = batch(device, 2**20)
    x.untyped_storage().resize_(0)
    y = torch.empty(0, device=device)
    y.resize_(2**19)
    x.untyped_storage().resize_(4 * 2**20)
    x.zero_()
    y.resize_(16).resize_(2**20).fill_(1)
    (x + y).set_(batch(device, 2**19))


@program
def indexing(device):
    x = batch(device, 2048, WIDTH).requires_grad_()
    ids = torch.arange(1024, device=device)
    y = x[ids] + x.index_select(0, ids) + x.gather(0, ids[:, None].expand(1024, WIDTH))
    out = torch.zeros(2048, WIDTH, device=device).index_add(0, ids, y)
    out = out.scatter_add(0, ids[:, None].expand(1024, WIDTH), y)
    out = out.scatter(0, ids[:, None].expand(1024, WIDTH), y)
    out[ids] = y
    out.index_put_((ids,), y, accumulate=True)
    out.take_along_dim(ids[:, None], 0).sum().backward()


@program
def sorting(device):
    x = batch(device, 1024, WIDTH).requires_grad_()
    y = x.sort(dim=-1).values + x.topk(WIDTH, dim=0).values.sum()
    y = y + x.max(dim=-1, keepdim=True).values + x.cummax(-1).values + x.median()
    y = y.cumsum(-1) + x.cumprod(0) + x.logcumsumexp(0) + x.kthvalue(3, -1, keepdim=True)[0]
    y.sum().backward()


@program
def products(device):
    x = batch(device, 8, 256, 64).requires_grad_()
    y = torch.einsum("bqd,bkd->bqk", x, x).softmax(-1)
    z = torch.einsum("bqk,bkd,de->bqe", y, x, batch(device, 64, 64))
    z = torch.baddbmm(z, y, x) + torch.tensordot(y, x, dims=([2], [1])).sum() + (x @ x.mT).sum()
    (z + torch.cdist(x, x).mean() + functional.cosine_similarity(x, z).mean()).norm().backward()


# -- losses --


@program
def cross_entropies(device):
    logits = batch(device, 1024, 512).requires_grad_()
    target = torch.zeros(1024, dtype=torch.int64, device=device)
    target[::2] = -100
    cost = functional.cross_entropy
    loss = cost(logits, target, ignore_index=-100)
    loss = loss + cost(logits, target, label_smoothing=0.1)
    loss = loss + cost(logits, target, reduction="sum", weight=torch.ones(512, device=device))
    loss = loss + cost(logits, logits.detach().softmax(-1))
    loss = loss + cost(logits.view(4, 256, 512).transpose(1, 2), target.view(4, 256))
    loss.backward()


@program
def other_losses(device):
    x = batch(device, 1024, 512).requires_grad_()
    target = torch.zeros(1024, 512, device=device)
    losses = [
        functional.mse_loss, functional.l1_loss, functional.huber_loss, functional.smooth_l1_loss,
        functional.binary_cross_entropy_with_logits,
    ]  # fmt: skip
    total = sum(loss(x, target) for loss in losses)
    total = total + functional.kl_div(x.log_softmax(-1), target, reduction="batchmean")
    total = total + functional.binary_cross_entropy(x.sigmoid(), target)
    (total + functional.triplet_margin_loss(x, target, x * 2)).backward()


@program
def activations(device):
    x = batch(device, 512, 512).requires_grad_()
    names = [
        "relu", "gelu", "silu", "mish", "elu", "selu", "hardswish", "hardtanh", "softplus",
        "leaky_relu", "logsigmoid", "tanhshrink", "softsign", "celu", "relu6", "hardsigmoid",
    ]  # fmt: skip
    y = sum(getattr(functional, name)(x) for name in names)
    y = y + functional.gelu(x, approximate="tanh") + functional.glu(torch.cat([x, x], -1))
    y.where(y > 0, y * 2).clamp(-1, 1).lerp(x, 0.5).sum().backward()


@program
def norms(device):
    x = batch(device, 64, 64, 128).requires_grad_()
    y = functional.layer_norm(x, (128,), torch.ones(128, device=device))
    y = y + nn.RMSNorm(128).to(device)(x) + functional.normalize(x, dim=-1)
    y = y + nn.GroupNorm(8, 64).to(device)(x) + nn.InstanceNorm1d(64, affine=True).to(device)(x)
    y = y + nn.BatchNorm1d(64).to(device)(x) + nn.BatchNorm1d(64).to(device).eval()(x)
    (y.var(-1).mean() + y.std() + y.logsumexp(-1).mean()).backward()


# -- attention --


def heads(device, num_heads=4):
    return batch(device, 2, num_heads, 256, 64).requires_grad_()


def attention(device, *, num_kv_heads=4, mask=None, **how):
    query, key = heads(device), heads(device, num_kv_heads)
    for _ in range(2):
        out = functional.scaled_dot_product_attention(query, key, key * 2, attn_mask=mask, **how)
        out.sum().backward()


@program
def attention_causal(device):
    attention(device, is_causal=True)


@program
def attention_boolean_mask(device):
    attention(device, mask=torch.ones(2, 1, 256, 256, device=device).bool())


@program
def attention_additive_mask(device):
    attention(device, mask=torch.zeros(256, 256, device=device))


@program
def attention_grouped(device):
    attention(device, num_kv_heads=2, enable_gqa=True)


@program
def attention_with_dropout(device):
    attention(device, dropout_p=0.1)


@program
def attention_learnt_bias(device):
    attention(device, mask=torch.zeros(1, 4, 256, 256, device=device, requires_grad=True))


@program
def attention_without_gradients(device):
    query = batch(device, 2, 4, 256, 64)
    with torch.no_grad():
        mask = torch.zeros(256, 256, device=device)
        functional.scaled_dot_product_attention(query, query, query, mask, dropout_p=0.1)


@program
def multi_head_attention(device):
    model = nn.MultiheadAttention(WIDTH, 4, batch_first=True).to(device)
    x = batch(device, 4, 128, WIDTH)
    for need_weights in (True, False):
        model(x, x, x, need_weights=need_weights)[0].sum().backward()


# -- autograd --


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor, ctx.kept = factor, x.exp()
        ctx.mark_non_differentiable(ctx.kept)
        return x * factor, ctx.kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x * ctx.kept, None


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.set_materialize_grads(False)
        return x.mul_(2)

    @staticmethod
    def backward(_ctx, grad):
        return grad * 2


@program
def custom_functions(device):
    model = mlp(device, depth=1)
    for _ in range(2):
        y, kept = Scaled.apply(model(batch(device)), 3.0)
        y = Doubling.apply(y.tanh() + kept)
        Scaled.apply(y, 0.5)[0].sum().backward()


@program
def hooks_that_pack(device):
    model = mlp(device)

    def pack(x):
        return (x.dtype, x.to(torch.bfloat16)) if x.is_floating_point() else (x.dtype, x)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0])):
        fit(model, device)


@program
def accumulated_gradients(device):
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        model(batch(device)).mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 1)


@program
def tensors_used_many_times(device):
    weight = batch(device, WIDTH, WIDTH).requires_grad_()
    x = batch(device).requires_grad_()
    y = x @ weight
    y = (y @ weight).relu() + y * y + y[:, :1] + x
    (y @ weight + y.t().contiguous().t() + x.view(-1).view_as(x)).sum().backward()


@program
def twice_backward(device):
    model = mlp(device, activation=nn.Tanh)
    x = batch(device).requires_grad_()
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (grad.norm(dim=-1) - 1).pow(2).mean().backward()
    loss = model(x).mean()
    loss.backward(retain_graph=True)
    loss.backward()


@program
def gradients_asked_for(device):
    model = mlp(device)
    x = batch(device).requires_grad_()
    y = model(x)
    torch.autograd.grad(y, list(model.parameters())[:2], torch.ones_like(y), retain_graph=True)
    torch.autograd.grad(y.sum(), [x, *model.parameters()], allow_unused=True)
    torch.autograd.backward([model(x).sum(), model[:3](x).mean()], inputs=[x])


@program
def functional_gradients(device):
    model = mlp(device, depth=1)
    parameters = {name: x.detach() for name, x in model.named_parameters()}

    def cost(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    torch.func.grad(cost)(parameters, batch(device))
    each = torch.func.vmap(torch.func.grad(cost), in_dims=(None, 0))
    each(parameters, batch(device, 8, 4, WIDTH))
    torch.func.jvp(lambda x: cost(parameters, x), (batch(device),), (batch(device),))


def doubled(_module, grad_in, _grad_out):
    return tuple(grad if grad is None else grad * 2 for grad in grad_in)


@program
def gradient_hooks(device):
    model = mlp(device)
    for layer in model:
        layer.register_full_backward_hook(doubled)
    model[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    model[3].register_forward_hook(lambda *call: call[-1] + 1)
    fit(model, device)


@program
def optimizers_in_backward(device):
    model = mlp(device)
    optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(update) for p in optimizers]
    for _ in range(2):
        model(batch(device)).pow(2).mean().backward()
    for handle in handles:
        handle.remove()  # or PyTorch would keep parameter and hook alive for ever


# -- what a CPU does so differently that there is nothing to compare with --

ONLY_PRETENDED = {}


def only_pretended(function):
    ONLY_PRETENDED[function.__name__] = function
    return function


@only_pretended
def saved_on_the_host(device):
    model = mlp(device)
    with torch.autograd.graph.save_on_cpu():
        fit(model, device)
