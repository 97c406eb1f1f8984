"""Charts as figures: the data for the page's script, and the words for those who cannot see it."""

import msgspec

from brimful.report import markup
from brimful.report.charts import Chart
from brimful.report.markup import Html


def embed_json(value: msgspec.Struct) -> Html:
    """Spell a value as JSON that no HTML parser can mistake for the end of its script."""
    text = msgspec.json.encode(value).decode()
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for character, escape in escapes.items():
        text = text.replace(character, escape)
    return Html(text)


def chart_figure(key: str, chart: Chart, words: str, caption: str) -> Html:
    """Set a chart with its caption.

    Args:
        key: Unique on the page.
        chart: What is drawn.
        words: The chart in words, for a screen reader.
        caption: What stands below it.

    Returns:
        The figure; the page's script draws into it.
    """
    return Html(
        f'<figure><div class="chart" id="{key}-chart" role="img" aria-label="{markup.text(words)}">'
        f"</div><figcaption>{markup.text(caption)}</figcaption>"
        f'<script type="application/json" data-for="{key}-chart">{embed_json(chart)}</script>'
        "</figure>"
    )
