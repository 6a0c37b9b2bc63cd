"""Whether this machine has a font to draw PNGs with; a slim container has none."""

import pytest

from learnloop_service.app.plots.png import NoRenderer, png


def _can_draw() -> bool:
    try:
        png('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>')
    except NoRenderer:
        return False
    return True


HAS_FONT = _can_draw()
needs_font = pytest.mark.skipif(not HAS_FONT, reason="no font on this machine (Debian and Ubuntu: fonts-dejavu-core)")
