"""Charts as figures: the data for the page's script, and the words for those who cannot see it."""

from brimful.report.charts import Chart
from brimful.show import markup
from brimful.show.markup import Html


def chart_figure(key: str, chart: Chart, words: str, caption: str) -> Html:
    """Set a chart with its caption.

    Returns the figure; the page's script draws into it.
    """
    return Html(
        f'<figure><div class="chart" id="{key}-chart" role="img" aria-label="{markup.text(words)}">'
        f"</div><figcaption>{markup.text(caption)}</figcaption>"
        f'<script type="application/json" data-for="{key}-chart">{markup.embedded(chart)}</script>'
        "</figure>"
    )
