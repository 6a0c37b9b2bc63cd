"""Writes plots to files, in the format that the file's suffix names."""

from pathlib import Path

from learnloop_service.app.cli.terminal import Failure


def check_ending(file: Path) -> None:
    """Raise Failure unless the file's suffix is that of SVG or PNG."""
    if file.suffix.lower() not in (".svg", ".png"):
        raise Failure(f"{file} ends neither with .svg nor with .png, the formats that there are")


def write_plot(svg: str, file: Path, scale: float | None = None) -> None:
    """Write a plot as SVG or PNG, and create the directory if it is missing. Raises Failure.

    `scale` is the number of pixels for each unit of the SVG.
    """
    from learnloop_service.app.plots.png import SCALE, NoRenderer, png

    check_ending(file)
    try:
        content = png(svg, scale or SCALE) if file.suffix.lower() == ".png" else svg.encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    except NoRenderer as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot write {file}: {error.strerror}") from error
