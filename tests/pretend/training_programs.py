"""More programs that run for real and pretended: checkpoints, precision, optimizers, modules."""

import contextlib
from functools import partial

import torch
from tests.pretend.programs import WIDE, WIDTH, batch, fit, kind_of, mlp, train
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, stateless
from torch.utils import checkpoint as checkpoints

PROGRAMS = {}
MATRIX = 2


def program(function):
    PROGRAMS[function.__name__] = function
    return function


# -- checkpoints --


class Checkpointed(nn.Module):
    def __init__(self, device, how):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(mlp(device, depth=1), nn.Dropout(0.1), nn.LayerNorm(WIDTH, device=device))
            for _ in range(4)
        )
        self.how = how

    def forward(self, x):
        for block in self.blocks:
            x = self.how(block, x)
        return x


def checkpointed(device, **how):
    model = Checkpointed(device, partial(checkpoints.checkpoint, **how))
    x = batch(device).requires_grad_()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), x)


@program
def checkpoint_reentrant(device):
    checkpointed(device, use_reentrant=True)


@program
def checkpoint_reentrant_without_rng(device):
    checkpointed(device, use_reentrant=True, preserve_rng_state=False)


@program
def checkpoint(device):
    checkpointed(device, use_reentrant=False)


@program
def checkpoint_without_rng(device):
    checkpointed(device, use_reentrant=False, preserve_rng_state=False)


@program
def checkpoint_without_early_stop(device):
    with checkpoints.set_checkpoint_early_stop(enable=False):
        checkpointed(device, use_reentrant=False)


@program
def checkpoint_nested(device):
    once = partial(checkpoints.checkpoint, use_reentrant=False)
    model = Checkpointed(device, once)
    fit(Checkpointed(device, lambda block, x: once(model, once(block, x))), device)


@program
def checkpoint_selective(device):
    keep = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
    contexts = partial(checkpoints.create_selective_checkpoint_contexts, keep)
    checkpointed(device, use_reentrant=False, context_fn=contexts)


@program
def checkpoint_sequential(device):
    model = mlp(device, depth=4)
    x = batch(device).requires_grad_()
    checkpoints.checkpoint_sequential(model, 4, x, use_reentrant=False).sum().backward()


# -- precision --


def mixed(device, dtype, **how):
    model = nn.Sequential(mlp(device), nn.LayerNorm(WIDTH)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = batch(device)
    for _ in range(2):
        for _ in range(2):
            with torch.autocast(kind_of(device), dtype=dtype, **how):
                y = model(model(x))
                loss = functional.cross_entropy(y, torch.zeros_like(y[:, 0]).long())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def autocast(device):
    mixed(device, torch.bfloat16)


@program
def autocast_without_cache(device):
    mixed(device, torch.bfloat16, cache_enabled=False)


@program
def autocast_checkpointed(device):
    with torch.autocast(kind_of(device), dtype=torch.bfloat16):
        checkpointed(device, use_reentrant=False)


@program
def autocast_interrupted(device):
    model, head = mlp(device), nn.Linear(WIDTH, WIDE).to(device)
    for _ in range(2):
        with torch.autocast(kind_of(device), dtype=torch.bfloat16):
            y = model(batch(device))
            with torch.autocast(kind_of(device), enabled=False):
                z = head(y.float())
            (functional.linear(z, head.weight.t()) @ y.t()).softmax(-1).sum().backward()


@program
def half_with_loss_scaling(device):
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(kind_of(device), init_scale=4.0)
    for _ in range(3):
        with torch.autocast(kind_of(device), dtype=torch.float16):
            loss = model(batch(device)).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@program
def pure_bf16(device):
    model = nn.Sequential(mlp(device), nn.RMSNorm(WIDTH)).to(device, torch.bfloat16)
    x = batch(device).bfloat16()
    train(model, torch.optim.AdamW(model.parameters()), x)


@program
def mixed_by_hand(device):
    model = mlp(device, depth=2)
    low = mlp(device, depth=2).bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        low(batch(device).bfloat16()).float().pow(2).mean().backward()
        for master, parameter in zip(model.parameters(), low.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(list(low.parameters()), list(model.parameters()))


# -- optimizers --


def optimized(device, make, *, clip=None):
    model = mlp(device)
    optimizer = make(model.parameters())
    for _ in range(3):
        model(batch(device, 64, WIDTH)).pow(2).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=clip)
        optimizer.step()
        optimizer.zero_grad()


@program
def adamw_foreach_clipped(device):
    optimized(device, partial(torch.optim.AdamW, foreach=True), clip=True)


@program
def adamw_fused_clipped(device):
    optimized(device, partial(torch.optim.AdamW, fused=True), clip=False)


@program
def adamw_single_amsgrad(device):
    optimized(device, partial(torch.optim.AdamW, foreach=False, amsgrad=True))


@program
def adam_by_default(device):
    optimized(device, torch.optim.Adam)


@program
def sgd_momentum_foreach(device):
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)
    optimized(device, make)


@program
def sgd_nesterov_fused(device):
    optimized(device, partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, fused=True))


@program
def adafactor(device):
    optimized(device, torch.optim.Adafactor)


@program
def muon(device):
    optimized(device, lambda every: torch.optim.Muon([p for p in every if p.ndim == MATRIX]))


@program
def rmsprop_and_schedule(device):
    model = mlp(device)
    optimizer = torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        train(model, optimizer, batch(device), steps=1)
        schedule.step()
        averaged.update_parameters(model)


@program
def lbfgs(device):
    model = mlp(device, depth=1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = model(batch(device)).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)


# -- modules --


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(2048, WIDTH, padding_idx=0)
        self.body = mlp(None, depth=1)
        self.head = nn.Linear(WIDTH, 2048, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


@program
def tied_weights(device):
    model = Tied().to(device)
    ids = torch.zeros(512, dtype=torch.int64, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, ids, loss=lambda y: functional.cross_entropy(y, ids))


@program
def built_on_meta(device):
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device=device)
    model.head.weight = model.embed.weight
    nn.init.normal_(model.embed.weight, std=0.02)
    model.load_state_dict(Tied().to(device).state_dict(), assign=True)
    ids = torch.zeros(512, dtype=torch.int64, device=device)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), ids)


@program
def built_under_a_device(device):
    with torch.device(device):
        model = Tied()
        ids = torch.randint(2048, (512,))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), ids)


@program
def moved_and_cast(device):
    model = mlp("cpu").to(device).double()
    model(batch(device).double()).sum().backward()
    model.half().float()
    model(batch(device)).sum().backward()
    model.to("cpu").to(device)


@program
def called_twice(device):
    model = mlp(device)
    y = model(batch(device))
    (model(y) + model(y.detach())).sum().backward()


@program
def models_one_after_another(device):
    for depth in (2, 3, 1):
        model = mlp(device, depth=depth)
        fit(model, device)
        del model


@program
def parametrized(device):
    model = mlp(device, depth=2)
    parametrizations.weight_norm(model[0])
    parametrizations.weight_norm(model[2], dim=1)
    parametrizations.spectral_norm(model[3])
    fit(model.to(device), device)


@program
def low_rank_by_parametrization(device):
    class Adapted(nn.Module):
        def __init__(self, out_features, in_features):
            super().__init__()
            self.down = nn.Parameter(torch.randn(8, in_features, device=device))
            self.up = nn.Parameter(torch.zeros(out_features, 8, device=device))

        def forward(self, weight):
            return weight + self.up @ self.down

    model = mlp(device, depth=2).requires_grad_(requires_grad=False)
    for layer in (model[0], model[2], model[3]):
        nn.utils.parametrize.register_parametrization(layer, "weight", Adapted(*layer.weight.shape))
    with nn.utils.parametrize.cached():
        model(batch(device)).sum().backward()
    model(batch(device)).sum().backward()


@program
def called_statelessly(device):
    model = mlp(device)
    halves = {name: x.detach() / 2 for name, x in model.named_parameters()}
    for x in halves.values():
        x.requires_grad_()
    torch.func.functional_call(model, halves, (batch(device),)).sum().backward()
    with contextlib.suppress(AttributeError):
        stateless.functional_call(model, halves, (batch(device),)).sum().backward()


@program
def frozen_and_detached(device):
    model = mlp(device)
    model[:4].requires_grad_(requires_grad=False)
    fit(model, device)
    copy = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(copy * 2, model.parameters())


@program
def distilled(device):
    teacher, student = mlp(device), mlp(device, depth=1)
    optimizer = torch.optim.AdamW(student.parameters())
    x = batch(device)
    with torch.no_grad():
        target = teacher(x).softmax(-1)

    def loss(y):
        return functional.kl_div(y.log_softmax(-1), target, reduction="batchmean")

    train(student, optimizer, x, loss=loss)
