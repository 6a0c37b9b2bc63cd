"""The elements of our plots, as SVG without scripts, fonts or style sheets."""

from collections.abc import Iterable, Sequence
from html import escape

INK, FAINT, GRID = "#1f2933", "#52606d", "#d9e0e6"
BLUE, PALE_BLUE, GREEN, ORANGE = "#014f86", "#a9d0ea", "#2d6a4f", "#bc6c25"

Point = tuple[float, float]


def document(width: int, height: int, title: str, parts: Iterable[str], background: str | None = "#ffffff") -> str:
    """Return the whole file. `title` is what a screen reader reads out."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{_escaped(title)}</title>",
            *([] if background is None else [f'<rect width="{width}" height="{height}" fill="{background}"/>']),
            *parts,
            "</svg>\n",
        )
    )


def label(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, size: int = 13, weight: str | None = None
) -> str:
    """Return a text at a position. It is escaped."""
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    bold = "" if weight is None else f' font-weight="{weight}"'
    return f'<text {position} font-size="{size}" fill="{fill}"{bold}>{_escaped(words)}</text>'


def heading(words: str) -> str:
    """Return the heading."""
    return f'<text x="16" y="24" font-size="15" font-weight="bold" fill="{INK}">{_escaped(words)}</text>'


def line(start: Point, end: Point, stroke: str, width: float = 1, dashes: str | None = None) -> str:
    """Return a straight line."""
    (x1, y1), (x2, y2) = start, end
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width:g}"{_dashed(dashes)}/>'


def curve(points: Sequence[Point], stroke: str, width: float = 2, dashes: str | None = None) -> str:
    """Return a line through points, or a dot for a single point."""
    if len(points) == 1:
        return dot(points[0], stroke)
    drawn = f'stroke="{stroke}" stroke-width="{width:g}" stroke-linejoin="round"{_dashed(dashes)}'
    return f'<polyline points="{_places(points)}" fill="none" {drawn}/>'


def area(points: Sequence[Point], fill: str, opacity: float = 0.5) -> str:
    """Return a filled shape."""
    return f'<polygon points="{_places(points)}" fill="{fill}" fill-opacity="{opacity:g}"/>'


def boxes(places: Iterable[Point], width: float, height: float, fill: str, opacity: float = 1.0) -> str:
    """Return equal rectangles, each by its upper left corner, as one shape."""
    drawn = "".join(f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z" for x, y in places)
    return f'<path d="{drawn}" fill="{fill}" fill-opacity="{opacity:g}"/>'


def moved(x: float, y: float, parts: Iterable[str]) -> str:
    """Return parts moved to the right and down."""
    return f'<g transform="translate({x:g} {y:g})">{"".join(parts)}</g>'


def dot(center: Point, fill: str, radius: float = 4) -> str:
    """Return a dot."""
    return f'<circle cx="{center[0]:.1f}" cy="{center[1]:.1f}" r="{radius:g}" fill="{fill}"/>'


def _dashed(dashes: str | None) -> str:
    return "" if dashes is None else f' stroke-dasharray="{dashes}"'


def _places(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _escaped(words: str) -> str:
    """Escape text for XML, which excludes control characters. Direction marks would reverse adjacent text."""
    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words))
