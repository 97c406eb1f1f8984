"""Plots of the precision doctor as plain SVG files, which take neither a library nor a script."""

import math
from collections.abc import Mapping, Sequence

from brimful.doctor.formats import FORMATS
from brimful.doctor.records import Kind, ScaleStep
from brimful.doctor.spectrum import Spectrum
from brimful.report.precision import LEAST, MOST, shares_by_exponent
from brimful.show.marks import BAD, BAR, INK, MARK, line, picture, words

WIDTH, ROW, LEFT, TOP, BOTTOM = 760, 110, 130, 34, 44
"""Pixels: of the picture, of one histogram, and of its margins."""
_SCALE_HEIGHT = 260
_EVERY = 5


def exponents_svg(spectra: Mapping[Kind, Spectrum]) -> str:
    """Draw the numbers of each kind by power of two, with the ends of fp16 and fp8.

    ``spectra``: by kind; not empty.
    """
    height = TOP + ROW * len(spectra) + BOTTOM
    parts = [words(LEFT, 20, "Share of the numbers that are not 0, by power of two")]
    for place, (kind, spectrum) in enumerate(spectra.items()):
        floor = TOP + ROW * (place + 1) - 8
        parts += _histogram(kind, spectrum, floor)
    bottom = TOP + ROW * len(spectra)
    for exponent in range(LEAST, MOST + 1, _EVERY):
        parts.append(words(_x(exponent), bottom + 14, f"2^{exponent}", size=10))
    for label, power in _marks().items():
        x = _x(power)
        parts.append(line(x, TOP, x, bottom, MARK, dashed=True))
        parts.append(words(x, bottom + 32, label, size=10, ink=MARK))
    return picture(WIDTH, height, parts)


def _marks() -> dict[str, float]:
    fp16, e4m3 = FORMATS["fp16"], FORMATS["e4m3"]
    return {
        "fp16: 0": fp16.vanish_exponent,
        "fp16 normal": fp16.least_exponent,
        "e4m3 end": math.log2(e4m3.largest),
        "fp16 end": math.log2(fp16.largest),
    }


def _histogram(kind: str, spectrum: Spectrum, floor: float) -> list[str]:
    shares = shares_by_exponent(spectrum)
    top = max(shares.values(), default=1.0)
    width = _x(1) - _x(0) - 1
    parts = [
        words(8, floor - ROW / 2, kind),
        line(LEFT, floor, WIDTH - 10, floor, INK),
        words(8, floor - ROW / 2 + 16, f"most {top:.0%}", size=10),
    ]
    for exponent, share in shares.items():
        tall = (ROW - 24) * share / top
        parts.append(
            f'<rect x="{_x(exponent):.1f}" y="{floor - tall:.1f}" width="{width:.1f}" '
            f'height="{tall:.1f}" fill="{BAR}"/>'
        )
    return parts


def scale_svg(scales: Sequence[ScaleStep]) -> str:
    """Draw the loss scale over the steps, skipped ones marked."""
    powers = [math.log2(step.scale) for step in scales]
    low, high = math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1
    room = _SCALE_HEIGHT - TOP - BOTTOM

    def y(power: float) -> float:
        return TOP + room * (high - power) / (high - low)

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - 30) * (step - scales[0].step) / max(
            scales[-1].step - scales[0].step, 1
        )

    corners = " ".join(
        f"{x(step.step):.1f},{y(power):.1f}" for step, power in zip(scales, powers, strict=True)
    )
    skipped = sum(step.skipped for step in scales)
    parts = [
        words(LEFT, 20, f"Loss scale; {skipped} of {len(scales)} steps were skipped (red)"),
        f'<polyline points="{corners}" fill="none" stroke="{BAR}" stroke-width="2"/>',
        *(words(70, y(power) + 4, f"2^{power}", size=10) for power in range(low, high + 1)),
        words(LEFT, _SCALE_HEIGHT - 14, f"step {scales[0].step}", size=10),
        words(WIDTH - 70, _SCALE_HEIGHT - 14, f"step {scales[-1].step}", size=10),
    ]
    for step, power in zip(scales, powers, strict=True):
        ink = BAD if step.skipped else BAR
        parts.append(f'<circle cx="{x(step.step):.1f}" cy="{y(power):.1f}" r="3" fill="{ink}"/>')
    return picture(WIDTH, _SCALE_HEIGHT, parts)


def _x(exponent: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * (exponent - LEAST) / (MOST + 1 - LEAST)
