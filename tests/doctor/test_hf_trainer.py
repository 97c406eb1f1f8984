"""The watcher in a Hugging Face Trainer."""

import pytest

from brimful.errors import InputError

pytestmark = pytest.mark.torch


def run(tmp_path, *, spoil=None):
    import torch
    from torch import nn
    from transformers import Trainer, TrainingArguments

    from brimful.doctor.hf_trainer import PrecisionCallback

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            return {"loss": self.other(self.one(x)).square().mean()}

    torch.manual_seed(0)
    model = Model()
    if spoil is not None:
        model.one.register_forward_hook(lambda _m, _args, out: out * spoil)
    callback = PrecisionCallback(every=2)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, use_cpu=True,
        gradient_accumulation_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    data = [{"x": torch.randn(8)} for _ in range(32)]
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()
    assert not any(m._forward_hooks for m in model.modules()) or spoil is not None
    return callback


def test_every_second_step_is_seen_with_its_micro_batches_and_updates(tmp_path):
    callback = run(tmp_path)
    seen = callback.watcher.watched()
    assert seen.steps == (1, 3)
    nums = {(row.name, row.kind): row.spectrum.num for row in seen.rows if row.step == 1}
    assert nums["one", "activation"] == 2 * 2 * 8
    assert nums["one.weight", "gradient"] == 2 * 64
    assert {lost.name for lost in seen.lost} == {
        f"{layer}.{what}" for layer in ("one", "other") for what in ("weight", "bias")
    }
    assert callback.findings == ()


def test_a_layer_that_comes_to_nan_is_named(tmp_path):
    (first, *_) = run(tmp_path, spoil=float("nan")).findings
    assert (first.fault, first.name, first.kind) == ("not-finite", "one", "activation")


def test_a_distance_of_nothing_is_refused():
    from brimful.doctor.hf_trainer import PrecisionCallback

    with pytest.raises(InputError, match="every=0 is too few"):
        PrecisionCallback(every=0)
