"""A market as one page: the plot and every table, no network, nothing beside the file."""

from collections.abc import Sequence

from brimful.report.shop import (
    Shopped,
    cells,
    headline,
    inputs,
    kind_cells,
    own_pairs,
    rests_on,
    told,
)
from brimful.report.shop_plot import shop_plot
from brimful.search.shop.values import Option
from brimful.show import markup
from brimful.show.markup import Html

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5d6675; --edge: #d5d9df;
  --paper: #ffffff; --best: #eef4fb; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e8ebf0; --soft: #a3acba; --edge: #2d3440; --paper: #14181f; --best: #1c2a3b; }
}
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.take { font-size: 1.1rem; font-weight: 600; margin: .25rem 0; }
.soft, caption { color: var(--soft); text-align: left; }
.scroll { overflow-x: auto; }
.plot svg { min-width: 600px; }
tbody th, tbody td { white-space: nowrap; }
tbody td:last-child:not(.n) { white-space: normal; min-width: 14rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; font-weight: 400; }
thead th { color: var(--soft); }
td, tbody th { min-width: 3rem; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.best { background: var(--best); }
tr.best th { font-weight: 700; }
.pairs div { display: grid; grid-template-columns: minmax(6rem, 9rem) 1fr; gap: .5rem; }
.pairs dt { color: var(--soft); }
.pairs dd { margin: 0; overflow-wrap: anywhere; }
li { overflow-wrap: anywhere; }
@media print { .scroll { overflow: visible; } h2 { break-after: avoid; } }
"""


def shop_page(shopped: Shopped) -> str:
    """Set the page.

    Returns HTML that needs no other file and no network.
    """
    name = shopped.job.model.name
    first, *rest = headline(shopped)
    lines = markup.join(markup.paragraph(markup.text(line), style="soft") for line in rest)
    sections = markup.join(
        markup.section(key, title, body) for key, title, body in _sections(shopped)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{markup.text(name)}: what hardware, what money</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<p class="soft">Brimful shop, predicted</p><h1>{markup.text(name)}: what hardware, what '
        f'money</h1>\n<p class="take">{markup.text(first)}</p>{lines}\n'
        f'<div class="scroll plot">{shop_plot(shopped)}</div>\n{sections}\n</body>\n</html>\n'
    )


def _sections(shopped: Shopped) -> list[tuple[str, str, Html]]:
    found = shopped.found
    sections = [
        ("says", "What the numbers say", markup.bullets(told(found))),
        ("frontier", "Frontier", _options(shopped, found.frontier, "Cheapest first, predicted")),
    ]
    if found.fewest:
        fewest = _options(shopped, found.fewest, "Of each kind, predicted")
        sections.append(("fewest", "The fewest GPUs that hold it", fewest))
    if found.owned:
        sections.append(("own", "Your own", _options(shopped, found.owned, "Predicted")))
        sections += [
            (f"own-{i}", f"Own {each.gpus}", markup.pairs(own_pairs(each)))
            for i, each in enumerate(shopped.owned)
        ]
    sections += [
        ("kinds", "Kinds of GPU", _kinds(shopped)),
        ("run", "The run", markup.pairs(inputs(shopped))),
        ("rests", "What it rests on", markup.bullets(rests_on(shopped))),
    ]
    return sections


def _options(shopped: Shopped, options: Sequence[Option], caption: str) -> Html:
    best = shopped.choice.best if shopped.choice else None
    right = frozenset({2, 3, 4, 5, 6})
    rows = [
        markup.row(
            [markup.text(cell) for cell in cells(option, shopped.job)],
            right=right,
            style="best" if option == best else "",
        )
        for option in options
    ]
    headings = ("GPUs", "plan", "time", "USD", "kWh", "tokens/s", "spare")
    return markup.table(caption, headings, [markup.join(rows)], right=right)


def _kinds(shopped: Shopped) -> Html:
    found, right = shopped.found, frozenset({1, 3})
    rows = [
        markup.row([markup.text(cell) for cell in kind_cells(found, kind)], right=right)
        for kind in found.alone
    ]
    headings = ("GPU", "USD/h", "alone", "at best", "outcome")
    caption = "One of each; at best: the run if nothing is recomputed or sent"
    return markup.table(caption, headings, [markup.join(rows)], right=right)
