"""What watching costs a Hugging Face Trainer: the same run with the callback and without.

``python benchmarks/watch.py [--pairs N] [--steps N]`` alternates both and compares seconds of the
processor per step, which other programs change less than the clock; medians over steps, outside the
metered ones and, apart, of the metered ones.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

from brimful.process.library_output import quiet_libraries

quiet_libraries()

from transformers import TrainerCallback  # noqa: E402

METERED = 2


class Clock(TrainerCallback):
    """Notes the processor's seconds of every step, from one end to the next."""

    def __init__(self) -> None:
        self.step_s: list[float] = []
        self._since = 0.0

    def on_train_begin(self, *_args: Any, **_given: Any) -> None:
        self._since = time.process_time()

    def on_step_end(self, *_args: Any, **_given: Any) -> None:
        now = time.process_time()
        self.step_s.append(now - self._since)
        self._since = now


def train(num_steps: int, *, watched: bool) -> list[float]:
    """Train a small decoder and return the seconds of its steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    from brimful.watch import MemoryCallback

    set_seed(0)
    torch.set_num_threads(1)
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8000, **shape, **heads, use_cache=False))
    ids = torch.randint(8000, (4 * num_steps, 128))
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=num_steps, per_device_train_batch_size=4, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            logging_strategy="no",
        )  # fmt: skip
        watching = [MemoryCallback(simulate=False)] if watched else []
        data = [{"input_ids": row, "labels": row} for row in ids]
        callbacks = [*watching, clock]
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks).train()
    return clock.step_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    train(METERED + 1, watched=True)  # everything is imported and compiled before a clock counts
    ratios, first = [], []
    for _ in range(args.pairs):
        plain, watched = train(args.steps, watched=False), train(args.steps, watched=True)
        behind = [statistics.median(steps[METERED + 1 :]) for steps in (plain, watched)]
        ratios.append(behind[1] / behind[0] - 1)
        first.append((sum(watched[:METERED]) - sum(plain[:METERED])) / behind[0])
        print(f"behind the metered steps {ratios[-1]:+.2%}; the two cost {first[-1]:+.2f} steps")
    print(
        f"median of {args.pairs} pairs: {statistics.median(ratios):+.2%} of a step behind the "
        f"metered ones; these cost {statistics.median(first):+.2f} steps more together"
    )


if __name__ == "__main__":
    main()
