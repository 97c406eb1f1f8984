"""Fine-tunes with the Hugging Face Trainer on one GPU, rebuilt as they were published.

Owns what transformers' Trainer (4.48), Accelerate's autocast (1.0), TRL's and fms-acceleration's
preparation of a quantized model, and PEFT's adapters do around a model. The models are in
``hf_decoder`` and ``hf_bigcode``, the layers in ``hf_linear``.

The peak is that of training: the Trainer resets the statistics when it starts to train.

Assumed: packed samples of exactly the sequence length; experts get equal shares of the tokens.

Run ``python validation/published/hf_trainer.py --all`` or ``--row ID``, with ``--json`` for all
fields.
"""

import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from hf_bigcode import BigCodeLM
from hf_decoder import CausalLM, Shape, Widened
from hf_linear import Lora, add_adapters, load
from row import Row, Simulated, compared_bytes, main, read_rows, summarise
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from brimful import pretend

ROWS = Path(__file__).parent / "rows" / "hf_trainer.json"
NUM_STEPS = 2
CODES = 256
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SHAPES = {
    "mistral-7b": Shape(
        width=4096, num_layers=32, num_heads=32, num_kv_heads=8, ffn_width=14336, vocab=32000
    ),
    "mixtral-8x7b": Shape(
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        ffn_width=14336,
        vocab=32000,
        num_experts=8,
    ),
    "llama-2-7b": Shape(
        width=4096, num_layers=32, num_heads=32, num_kv_heads=32, ffn_width=11008, vocab=32000
    ),
    "llama-2-70b": Shape(
        width=8192, num_layers=80, num_heads=64, num_kv_heads=8, ffn_width=28672, vocab=32000
    ),
    "llama-3-8b": Shape(
        width=4096, num_layers=32, num_heads=32, num_kv_heads=8, ffn_width=14336, vocab=128256
    ),
    "powerlm-3b": Shape(
        width=2304,
        num_layers=40,
        num_heads=36,
        num_kv_heads=36,
        ffn_width=9216,
        vocab=49152,
        tied=True,
        multiplied=True,
    ),
    "santacoder": Shape(
        width=2048,
        num_layers=24,
        num_heads=16,
        num_kv_heads=1,
        ffn_width=8192,
        vocab=49280,
        tied=True,
        max_positions=2048,
    ),
}
"""From the configuration files of the models."""

Base = Literal["half", "nf4", "nf4-prepared"]
"""How the base model is held.

``half``: in the given type. ``nf4``: linear layers in 4 bits, the rest in the given type
(fms-acceleration's plugin). ``nf4-prepared``: as TRL prepares it; the norms end in fp32.
"""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fine-tune.

    Attributes:
        model: Name of a shape.
        base: How the base model is held.
        lora: The adapters; None: every parameter trains.
        dtype: Of the parameters that are neither quantized nor adapters.
        autocast: Whether the Trainer's ``bf16`` or ``fp16`` flag is set.
        batch: Samples per step.
        seq_len: Tokens per sample, as the tokenizer's limit leaves them.
        widened: Where logits become fp32; GPTBigCode leaves them as they are.
        gpu: Whose kernels and workspaces.
    """

    model: str
    base: Base
    lora: Lora | None
    dtype: str
    autocast: bool
    batch: int
    seq_len: int
    widened: Widened
    gpu: str = "a100-80gb"


def build(config: Config, device: torch.device) -> nn.Module:
    """Make the model as it is when the Trainer gets it.

    Args:
        config: The fine-tune.
        device: Where it lies.
    """
    shape, dtype = SHAPES[config.model], DTYPES[config.dtype]
    with torch.device("cpu"):
        if shape.max_positions:
            model: nn.Module = BigCodeLM(shape)
        else:
            model = CausalLM(shape, widened=config.widened)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    codes = None
    if config.base != "half":
        codes = torch.empty(CODES, dtype=torch.float32, device=device)
    load(model, device, codes=codes)
    if config.lora is not None:
        add_adapters(model, config.lora, dtype=torch.float32)
    if config.base == "nf4-prepared":
        _widen_norms(model)
    model.train()
    return model


def _widen_norms(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm) or "norm" in name.rpartition(".")[2]:
            for parameter in module.parameters():
                parameter.data = parameter.data.to(torch.float32)


def train(config: Config, model: nn.Module, device: torch.device) -> tuple[Any, ...]:
    """Take steps as the Trainer does; what it keeps bound from step to step is bound here.

    Args:
        config: The fine-tune.
        model: From ``build``.
        device: Where it lies.

    Returns:
        What the Trainer still holds when it reads the statistics.
    """
    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(_groups(model), lr=2e-5, eps=1e-4, foreach=True)
    scaler = _scaler(config, device)
    tr_loss = torch.zeros((), device=device)
    model.zero_grad()
    for _ in range(NUM_STEPS):
        inputs = [
            torch.empty((config.batch, config.seq_len), dtype=torch.int64, device=device)
            for _ in range(3)
        ]
        tr_loss_step = _training_step(config, model, inputs, scaler)
        tr_loss = tr_loss + tr_loss_step
        if scaler is not None:
            scaler.unscale_(optimizer)
        grad_norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        _update(optimizer, scaler)
        model.zero_grad()
    return optimizer, inputs, tr_loss, grad_norm


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Split the parameters: biases and norms do not decay."""
    named = [(name, x) for name, x in model.named_parameters() if x.requires_grad]
    plain = [x for name, x in named if name.endswith("bias") or _is_norm(name)]
    names = {id(x) for x in plain}
    decayed = [x for _, x in named if id(x) not in names]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]


def _is_norm(name: str) -> bool:
    return "norm" in name or ".ln_" in name


def _scaler(config: Config, device: torch.device) -> torch.amp.GradScaler | None:
    """Return a loss scaler if the flag is ``fp16``."""
    if not config.autocast or config.dtype != "float16":
        return None
    return torch.amp.GradScaler(device.type)


def _update(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
    if scaler is None:
        optimizer.step()
        return
    scaler.step(optimizer)
    scaler.update()


def _training_step(
    config: Config, model: nn.Module, inputs: list[Tensor], scaler: torch.amp.GradScaler | None
) -> Tensor:
    loss = _compute_loss(config, model, inputs)
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    return loss.detach()


def _compute_loss(config: Config, model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """Run the model; its other outputs die here, before the backward pass."""
    input_ids, _, labels = inputs
    if not config.autocast:
        return model(input_ids, labels, _checkpoint)[0]
    with torch.autocast(input_ids.device.type, dtype=DTYPES[config.dtype]):
        outputs = model(input_ids, labels, _checkpoint)
    # Accelerate gives a model under autocast a forward whose outputs are fp32.
    outputs = _widen(outputs)
    return outputs[0]


def _widen(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_widen(y) for y in x)
    return x.float() if x.dtype in DTYPES.values() else x


def _checkpoint(module: nn.Module, *args: Any) -> Any:
    return recompute(module.__call__, *args, use_reentrant=True)


def simulate(row: Row[Config]) -> Simulated:
    """Run a row's program on the pretend GPU.

    Args:
        row: What was published.
    """
    config = row.config
    with pretend.gpu(config.gpu, says_cuda=False) as run:
        device = torch.device("gpu:0")
        model = build(config, device)
        if config.lora is not None:
            model.embedding().register_forward_hook(_require_grad)
        run.tape.mark()
        held = train(config, model, device)
        run.tape.mark()
        recording = run.recording()
    del held
    start, end = recording.marks.tolist()
    return summarise(recording, start=start, end=end)


def _require_grad(_module: nn.Module, _args: Any, output: Tensor) -> None:
    output.requires_grad_(True)


if __name__ == "__main__":
    sys.exit(main(read_rows(ROWS, Config), simulate, compared_bytes))
