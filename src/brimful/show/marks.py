"""The few marks that plots are made of, as plain SVG, which takes neither a library nor a script.

``precision_plots`` and ``comparison_plot`` say what is drawn.
"""

from collections.abc import Sequence

from brimful.show.markup import text

INK, BAR, MARK, BAD = "#222222", "#3b6fb6", "#b08030", "#c0392b"


def words(x: float, y: float, told: str, *, size: int = 12, ink: str = INK) -> str:
    """Write text from a point on."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{ink}">{text(told)}</text>'


def line(  # noqa: PLR0913 - two ends
    x: float, y: float, to_x: float, to_y: float, ink: str, *, dashed: bool = False
) -> str:
    """Draw from one point to another."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{ink}"{dash}/>'


def picture(width: float, height: float, parts: Sequence[str]) -> str:
    """Put marks on white paper."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
