"""Renders SVG as PNG with resvg: the package `resvg-py`, which the extra `plots` installs."""

from learnloop_service.environment.installation import needs_extra

SCALE = 2.0
"""Scale that looks sharp on high-resolution screens."""
_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
_LETTER = '<text x="2" y="15" font-family="sans-serif">x</text>'
_FAMILIES = (None, "DejaVu Sans", "Liberation Sans", "Noto Sans", "Open Sans", "Roboto", "Ubuntu", "Cantarell")
"""Fonts to try for `sans-serif`: resvg's own choice (None; Arial on many machines), then those of Linux systems."""


class NoRenderer(Exception):
    """The package that renders PNG is missing, or this machine has no font. The message says what to install."""


def png(svg: str, scale: float = SCALE) -> bytes:
    """Return the image. Raises NoRenderer: without a font, all text would silently be missing."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise NoRenderer(f"PNG needs {needs_extra('plots')}. SVG needs nothing.") from None
    empty = svg_to_bytes(svg_string=_PROBE.format(""))
    for family in _FAMILIES:
        if svg_to_bytes(svg_string=_PROBE.format(_LETTER), sans_serif_family=family) != empty:
            return svg_to_bytes(svg_string=svg, zoom=scale, sans_serif_family=family)
    raise NoRenderer("PNG needs a font on this machine, such as the Debian package fonts-dejavu-core.")
