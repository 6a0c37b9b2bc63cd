"""An evaluation's report as Markdown, and as a plot in SVG."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Json = Any
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 720, 200, 90, 34, 48


def markdown(name: str, report: Mapping[str, Json]) -> str:
    """A table of the models, and one of why their rollouts failed."""
    method = report["method"]
    lines = [
        f"# Evaluation {name}",
        "",
        f"{report['scenarios']} scenarios, {report['samples']} rollouts of each per model. "
        f"Intervals: {method['name']}, "
        f"{method['draws']:,} draws, {method['level']:.0%}. Differences are from the first model.",
        "",
        "| model | success | difference | reward | sources right | turns | tokens in/out | seconds p50/p95 | cost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(model) for model in report["models"]),
        "",
        "| model | rollouts | not scored | why no success |",
        "| --- | --- | --- | --- |",
        *(
            f"| {_cell(model['label'])} | {model['rollouts']} | {model['unscored']} | "
            f"{', '.join(f'{kind} {count}' for kind, count in model['errors'].items()) or '-'} |"
            for model in report["models"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _row(model: Mapping[str, Json]) -> str:
    cells = (
        _cell(model["label"]),
        _share(model["success"]),
        _share(model["difference"]["success"], signed=True),
        _number(model["reward"]),
        _share(model["sources"]),
        _number(model["turns"]),
        f"{_plain(model['prompt_tokens'], 0)}/{_plain(model['completion_tokens'], 0)}",
        f"{_plain(model['seconds_p50'], 2)}/{_plain(model['seconds_p95'], 2)}",
        "-" if model["cost_usd"] is None else f"${model['cost_usd']:.4f}",
    )
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _share(interval: Mapping[str, float] | None, *, signed: bool = False) -> str:
    if interval is None:
        return "-"
    sign = "+" if signed else ""
    mean, low, high = (format(100 * interval[part], f"{sign}.1f") for part in ("mean", "low", "high"))
    return f"{mean}% [{low}, {high}]"


def _number(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return f"{interval['mean']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


def _plain(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def svg(name: str, report: Mapping[str, Json]) -> str:
    """The success of each model with its interval, from 0 to 100%."""
    models: Sequence[Mapping[str, Json]] = report["models"]
    height = _TOP + _ROW * len(models) + 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(name)}: success by model</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="15" font-weight="bold" fill="#1f2933">'
        f"Success on {report['scenarios']} scenarios, {report['method']['level']:.0%} intervals</text>",
        *(_tick(share / 4, height) for share in range(5)),
        *(_line(model, _TOP + _ROW * number + _ROW // 2) for number, model in enumerate(models)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _tick(share: float, height: int) -> str:
    x = _x(share)
    return (
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - 30}" stroke="#d9e0e6"/>'
        f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="#52606d">{share:.0%}</text>'
    )


def _line(model: Mapping[str, Json], y: int) -> str:
    label = model["label"] if len(model["label"]) <= 26 else f"{model['label'][:25]}…"
    text = f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#1f2933">{escape(label)}</text>'
    found = model["success"]
    if found is None:
        return text
    return (
        text + f'<line x1="{_x(found["low"]):.1f}" y1="{y}" x2="{_x(found["high"]):.1f}" y2="{y}" stroke="#2a6f97" '
        'stroke-width="3"/>'
        f'<circle cx="{_x(found["mean"]):.1f}" cy="{y}" r="5" fill="#014f86"/>'
        f'<text x="{_WIDTH - _RIGHT + 14}" y="{y + 4}" fill="#1f2933">{found["mean"]:.1%}</text>'
    )
