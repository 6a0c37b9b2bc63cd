"""Renders an evaluation's report as Markdown, and as a plot in SVG."""

from collections.abc import Iterator, Mapping, Sequence

from learnloop_service.app.evaluations.report import models_without_figures
from learnloop_service.app.plots import svg as plot
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, counted_scenarios, in_words

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 720, 200, 90, 34, 48


def markdown(name: str, report: Mapping[str, Json]) -> str:
    """Return a table of the models, and a table of why their rollouts failed."""
    method = report["method"]
    lines = [
        f"# Evaluation {name}",
        "",
        f"{_what(report)}, {counted(report['samples'], 'rollout')} of each per model. "
        f"Intervals: {method['name']}, "
        f"{method['draws']:,} draws, {method['level']:.0%}. Differences are from the first model.",
        "",
        "| model | success | difference | reward | sources right | turns | tokens in/out | seconds p50/p95 | cost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(model) for model in report["models"]),
        *(f"\n{_cell(sentence)}" for sentence in models_without_figures(report).values()),
        "",
        "| model | rollouts | not scored | why no success |",
        "| --- | --- | --- | --- |",
        *(
            f"| {_cell(model['label'])} | {model['rollouts']} | {model['unscored']} | "
            f"{', '.join(f'{in_words(kind)} {count}' for kind, count in model['errors'].items()) or '-'} |"
            for model in report["models"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _what(report: Mapping[str, Json]) -> str:
    """Say what the rollouts are of."""
    what_if = report.get("what_if")
    if what_if is None:
        return counted_scenarios(report["scenarios"], report.get("split"))
    turns = ", ".join(str(turn) for turn in sorted({continuation["turn"] for continuation in what_if["continuations"]}))
    return f"Rollout {what_if['trajectory_id']} continued from turn {turns}"


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
    """Plot the success of each model with its interval, from 0 to 100%."""
    models: Sequence[Mapping[str, Json]] = report["models"]
    height = _TOP + _ROW * len(models) + 36
    scenarios = counted_scenarios(report["scenarios"], report.get("split"))
    title = f"Success on {scenarios}, {report['method']['level']:.0%} intervals"
    ticks = [part for share in range(5) for part in _tick(share / 4, height)]
    rows = [part for number, model in enumerate(models) for part in _line(model, _TOP + _ROW * number + _ROW // 2)]
    return plot.document(_WIDTH, height, f"{name}: success by model", [plot.heading(title), *ticks, *rows])


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _tick(share: float, height: int) -> Iterator[str]:
    x = _x(share)
    yield plot.line((x, _TOP), (x, height - 30), plot.GRID)
    yield plot.label(x, height - 12, f"{share:.0%}", anchor="middle", fill=plot.FAINT)


def _line(model: Mapping[str, Json], y: int) -> Iterator[str]:
    label = model["label"] if len(model["label"]) <= 26 else f"{model['label'][:25]}…"
    yield plot.label(_LEFT - 12, y + 4, label, anchor="end")
    if (success := model["success"]) is not None:
        yield plot.line((_x(success["low"]), y), (_x(success["high"]), y), plot.BLUE, 3)
        yield plot.dot((_x(success["mean"]), y), plot.BLUE, 5)
        yield plot.label(_WIDTH - _RIGHT + 14, y + 4, f"{success['mean']:.1%}")
    elif model.get("error") is not None:
        yield plot.label(_LEFT, y + 4, "no figures: it never answered", fill=plot.FAINT)
