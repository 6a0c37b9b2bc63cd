"""The charts of a report, with their titles and legends."""

from collections.abc import Sequence

from learnloop_service.app.plots import svg
from learnloop_service.app.plots.charts import LEGEND, Frame, held_out_chart
from learnloop_service.app.reports.charts import PAGE, PHASES, listed_rewards, phase_seconds, phases_bar, rewards_chart
from learnloop_service.app.reports.format import duration
from learnloop_service.app.reports.html import Html, h, joined
from learnloop_service.environment.json_type import Json

_PHASE_NAMES = {
    "rollout": "roll out",
    "judge": "judge",
    "train": "train",
    "evaluate": "evaluate",
    "reflect": "reflect",
    "other": "other",
}
_SHORTEST_S = 0.05
_TOP = Frame(560, 270)
_BAR = Frame(1120, 22, left=0, right=0, top=0, bottom=0)


def charts(report: Json) -> Html:
    """Return the charts of held-out success and rewards, and the bar of phases."""
    rewards = listed_rewards(report)
    count = sum(map(len, rewards.values()))
    every = report["rollouts"]["every"]
    part = "All" if every == 1 else f"Every {every}th iteration:"
    return joined(
        h(
            "div",
            _figure(
                "Held-out success",
                LEGEND,
                _TOP,
                held_out_chart(report["evaluations"]["items"], report["run"]["iterations_total"], PAGE, _TOP),
            ),
            _figure(
                f"{part} {count:,} training rewards",
                "a column for each iteration, darker where there are more rollouts; line: mean",
                _TOP,
                rewards_chart(report, PAGE, _TOP),
            ),
            class_="two",
        ),
        _phases(report),
    )


def _figure(title: str, note: str, frame: Frame, drawn: Sequence[str]) -> Html:
    picture = svg.document(frame.width, frame.height, f"{title}; {note}", drawn, background=None)
    return h("figure", h("figcaption", h("strong", title), " ", h("span", note, class_="muted")), Html(picture))


def _phases(report: Json) -> Html | None:
    seconds = phase_seconds(report)
    drawn = phases_bar(report, PAGE, _BAR)
    if not drawn:
        return None
    total = sum(seconds.values())
    legend = [
        h(
            "li",
            h("i", class_=f"phase-{name}"),
            f"{_PHASE_NAMES[name]} ",
            h("b", duration(seconds[name])),
            f" {seconds[name] / total:.0%}",
        )
        for name in PHASES
        if seconds.get(name, 0.0) >= _SHORTEST_S
    ]
    wall = report["cost"]["wall_s"]
    note = f"{duration(total)} of work" + ("" if wall is None else f", {duration(wall)} from start to end")
    return h(
        "figure",
        h("figcaption", h("strong", "Where the time went"), " ", h("span", note, class_="muted")),
        Html(svg.document(_BAR.width, _BAR.height, f"Seconds by phase: {note}", drawn, background=None)),
        h("ul", *legend, class_="legend"),
    )
