"""The tables of a report: evaluations, iterations, checkpoints, settings and machine."""

from collections.abc import Iterator, Mapping, Sequence

from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.reports.format import moment, number, percent, points
from learnloop_service.app.reports.html import Html, h, joined
from learnloop_service.app.reports.rollouts import thinned
from learnloop_service.environment.json_type import Json
from learnloop_service.training.statistics.shares import wilson

MAX_ROWS = 40
"""Maximum number of rows of a table, besides the first and the last one."""


def evaluations(report: Json) -> Html | None:
    """Return the held-out evaluations; None without any."""
    rows, every = report["evaluations"]["items"], report["evaluations"]["every"]
    if not rows:
        return None
    names = (
        "iteration",
        "split",
        "mode",
        "step",
        "tasks",
        "success",
        "95% interval",
        "change",
        "reward",
        "malformed",
        "turns",
    )
    cells = [
        (
            "base" if row["iteration"] == 0 else row["iteration"],
            row["split"],
            row["mode"],
            row["step"],
            row["scenarios"],
            percent(row["success"]),
            _interval(row),
            _change(row),
            number(row["mean_reward"]),
            percent(row["malformed"]),
            number(row["turns"]),
        )
        for row in rows
    ]
    table = table_of(names, cells, texts=(1, 2))
    return section("Held-out evaluations", table, _thinning(every, "evaluated iteration"))


def _interval(row: Json) -> str:
    low, high = wilson(row["success"], row["scenarios"])
    return f"{percent(low)} to {percent(high)}"


def _change(row: Json) -> str:
    difference = row["difference"]
    if difference is None:
        return ""
    return f"{points(100 * difference['mean'])} [{points(100 * difference['low'])}, {points(100 * difference['high'])}]"


def iterations(report: Json) -> Html | None:
    """Return the training iterations; None without any."""
    items = [row for row in report["iterations"]["items"] if row["iteration"] > 0]
    if not items:
        return None
    every = max(report["iterations"]["every"], thinned([row["iteration"] for row in items], MAX_ROWS))
    listed = [row for row in items if row["iteration"] % every == 0 or row in (items[0], items[-1])]
    names = (
        "iteration",
        "step",
        "mean reward",
        "median",
        "lowest",
        "highest",
        "rewards",
        "success",
        "malformed",
        "failed",
    )
    rows = [
        (
            row["iteration"],
            row["step"],
            *(number(row["rewards"][name]) for name in ("mean", "median", "min", "max")),
            row["rewards"]["count"],
            percent(row["success"]),
            percent(row["malformed"]),
            row["failed_rollouts"],
        )
        for row in listed
    ]
    table = table_of(names, rows)
    return section("Training iterations", table, _thinning(every, "iteration"))


def _thinning(every: int, noun: str) -> str:
    return "" if every == 1 else f"Every {every}th {noun}, and the first and the last one."


def facts(report: Json) -> Html:
    """Return tables of the run, of its machine, and of its settings."""
    run, written = report["run"], report["written"]
    facts = {
        "run": run["run_id"],
        "environment": run["environment"],
        "judge": run["judge"],
        "base model": run["base_model"],
        "forked from": run["parent"],
        "backend": run["backend"],
        "started": moment(run["started_at"]),
        "ended": moment(run["finished_at"]),
        "same seed, same weights": {True: "yes", False: "no", None: "not known"}[run["reproducible"]],
        "because": run["reproducible_reason"],
        "error": run["error"],
        "report written": moment(written["at"]),
        "by": f"Learnloop {written['learnloop']}, Python {written['python']}",
        "on": f"{written['system']}, {written['cores']} cores, engine on {written['engine_device']}",
    }
    settings = dict(_flat(report["settings"]))
    return h(
        "div",
        section("Run and machine", _pairs({name: value for name, value in facts.items() if value})),
        section("Settings", _pairs(settings)),
        class_="two",
    )


def _flat(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested objects by their paths. Empty ones are left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else name)
    elif value not in (None, [], ""):
        yield path, value if isinstance(value, str) else canonical(value)


def _pairs(pairs: Mapping[str, object]) -> Html:
    return h("dl", *(joined(h("dt", name), h("dd", value)) for name, value in pairs.items()), class_="pairs")


def checkpoints(report: Json) -> Html | None:
    """Return the checkpoints; None without any."""
    rows = report["checkpoints"]
    if not rows:
        return None
    table = table_of(
        ("step", "iteration", "checkpoint", "validation success", ""),
        [
            (
                row["step"],
                row["iteration"],
                row["model"] or "",
                percent(row["success"]),
                "best" if row["is_best"] else "",
            )
            for row in rows
        ],
        texts=(2, 4),
    )
    return section("Checkpoints", table)


def section(title: str, content: Html, note: str = "") -> Html:
    """Return a section of the page."""
    return h("section", h("h2", title), h("p", note, class_="muted") if note else None, content)


def table_of(names: Sequence[str], rows: Sequence[Sequence[object]], texts: Sequence[int] = ()) -> Html:
    """Return a table. Columns are right-aligned numbers, except those whose places are in `texts`."""
    classes = ["text" if column in texts else None for column in range(len(names))]

    def line(cells: Sequence[object], kind: str) -> Html:
        return h("tr", *(h(kind, cell, class_=of) for cell, of in zip(cells, classes, strict=True)))

    return h(
        "div",
        h("table", h("thead", line(names, "th")), h("tbody", *(line(row, "td") for row in rows))),
        class_="scroll",
        role="region",
        tabindex="0",  # so that it can be scrolled by keys
        aria_label=f"Table: {', '.join(filter(None, names))}",
    )
