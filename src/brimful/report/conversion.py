"""What ``brimful convert`` says, as tables for the terminal."""

from typing import TYPE_CHECKING

from brimful.report.tables import add_row, pairs_table, plain_table
from brimful.techniques.quantization import WORDS
from brimful.units import format_bytes, format_signed_percent

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from brimful.train.convert import Conversion


def conversion_tables(made: "Conversion", *, out: str) -> "Group":
    """Lay the losses and the bytes of a conversion side by side."""
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    return Group(
        _inputs(made), blank, _losses(made), blank, _bytes(made), blank, _verdict(made, out)
    )


def _inputs(made: "Conversion") -> "Table":
    size = made.quantization.group_size
    pairs = (
        ("to", f"{made.quantization.scheme}: {WORDS[made.quantization.scheme]}"),
        ("scale", f"groups of {size} weights" if size else "rows"),
        ("layers", f"{made.num_layers} quantised, {made.num_left} left as they are"),
        ("trained", "by qat, for this" if made.trained_for_it else "without rounding"),
    )
    return pairs_table(pairs, title="Conversion")


def _losses(made: "Conversion") -> "Table":
    table = plain_table(f"Held-out loss, nats (measured, {made.num_targets} targets)")
    table.add_column("model")
    table.add_column("loss", justify="right")
    table.add_column("against prepared", justify="right")
    rows = {
        "without rounding": made.measured_whole_loss,
        "prepared: rounds as qat does": made.measured_prepared_loss,
        "converted: integers": made.measured_converted_loss,
        "read back from the folder": made.measured_reloaded_loss,
    }
    for name, loss in rows.items():
        add_row(table, (name, f"{loss:.7f}", f"{loss - made.measured_prepared_loss:+.1e}"))
    return table


def _bytes(made: "Conversion") -> "Table":
    table = plain_table("Weights (measured)")
    table.add_column("where")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    rows = (
        ("in memory", made.measured_weight_bytes_before, made.measured_weight_bytes_after),
        ("in files", made.measured_file_bytes_before, made.measured_file_bytes_after),
    )
    for name, before, after in rows:
        change = format_signed_percent(after, before)
        add_row(table, (name, format_bytes(before), format_bytes(after), change))
    return table


def _verdict(made: "Conversion", out: str) -> "Group":
    from rich.console import Group
    from rich.text import Text

    lines = []
    if made.quantization.scheme == "int4":
        lines.append(
            Text("torchao holds each int4 in a byte here; backends that pack two pack them")
        )
    words = f"prepared, converted and read back differ by {made.largest_difference:.1e} nats"
    if made.is_kept:
        lines.append(Text(f"kept: {words}", style="bold green"))
        lines.append(Text(f"model in {out}: from_pretrained of transformers, with torchao"))
    else:
        lines.append(
            Text(f"not kept: {words}, more than {made.allowed_difference:g}", style="bold red")
        )
    return Group(*lines)
