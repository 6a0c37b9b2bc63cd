"""SVG as PNG, by resvg: the package `resvg-py`, which the extra `plots` installs."""

SCALE = 2.0
"""Sharp on today's screens."""
_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
_LETTER = '<text x="2" y="15" font-family="sans-serif">x</text>'
_FAMILIES = (None, "DejaVu Sans", "Liberation Sans", "Noto Sans", "Open Sans", "Roboto", "Ubuntu", "Cantarell")
"""What may stand for `sans-serif`: resvg's own choice, which is Arial on many machines, or what Linux systems bring."""


class NoRenderer(Exception):
    """There is no package that draws PNG, or no font on this machine; the message says what to install."""


def png(svg: str) -> bytes:
    """The picture. Raises NoRenderer: without a font all words would silently be missing."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise NoRenderer("PNG needs the extra `plots`: pip install 'learnloop[plots]'. SVG needs nothing.") from None
    empty = svg_to_bytes(svg_string=_PROBE.format(""))
    for family in _FAMILIES:
        if svg_to_bytes(svg_string=_PROBE.format(_LETTER), sans_serif_family=family) != empty:
            return svg_to_bytes(svg_string=svg, zoom=SCALE, sans_serif_family=family)
    raise NoRenderer("PNG needs a font on this machine, such as the Debian package fonts-dejavu-core.")
