"""Draws a report as a card of 1200 x 630 pixels, the size of previews of links."""

import textwrap

from learnloop_service.app.plots import svg
from learnloop_service.app.plots.charts import Frame, Palette, held_out_chart
from learnloop_service.app.reports.charts import phase_seconds, rewards_chart
from learnloop_service.app.reports.format import duration, percent
from learnloop_service.app.reports.html import visible
from learnloop_service.app.reports.summary import name_of
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

WIDTH, HEIGHT = 1_200, 630
_COLORS = Palette("#1b2026", "#59626c", "#e0e0d9", "#1f5fd0", "#b35309", "#7a3fb8")
_STATES = {
    "learned": ("It learned", "#13704a"),
    "got_worse": ("It got worse", "#ab241d"),
    "no_change_shown": ("No change shown", "#805300"),
    "too_early": ("Too early to say", "#59626c"),
    "demonstrations_learned": ("Demonstrations learned", "#13704a"),
    "demonstrations_not_learned": ("Demonstrations not learned", "#805300"),
}
_LEFT = 56
_HELD_OUT = Frame(620, 300, left=52, right=128, top=12, bottom=32, text=15)
_REWARDS = Frame(450, 300, left=62, right=110, top=12, bottom=32, text=15)
_LINE, _LINES = 104, 2
"""Number of characters of a line of the verdict, and of lines."""


def card(report: Json) -> str:
    """Return the card as SVG."""
    run, verdict = report["run"], report["verdict"]
    words, color = _STATES[verdict["state"]]
    title = f"{name_of(run)}: {verdict['text']}"
    return svg.document(
        WIDTH,
        HEIGHT,
        visible(title),
        [
            svg.boxes([(0, 0)], 12, HEIGHT, color),
            svg.label(_LEFT, 62, _cut(visible(name_of(run)), 58), size=24, weight="bold", fill=_COLORS.ink),
            svg.label(WIDTH - 48, 62, "Learnloop", anchor="end", size=24, weight="bold", fill=_COLORS.faint),
            svg.label(_LEFT, 142, _headline(words, verdict["on"]), size=58, weight="bold", fill=color),
            *(
                svg.label(_LEFT, 184 + 27 * index, line, size=19, fill=_COLORS.faint)
                for index, line in enumerate(_sentence(verdict["text"]))
            ),
            svg.label(_LEFT, 262, "Held-out success", size=17, weight="bold", fill=_COLORS.ink),
            svg.moved(
                _LEFT - 6,
                268,
                held_out_chart(report["evaluations"]["items"], run["iterations_total"], _COLORS, _HELD_OUT),
            ),
            svg.label(700, 262, "Training rewards", size=17, weight="bold", fill=_COLORS.ink),
            svg.moved(690, 268, rewards_chart(report, _COLORS, _REWARDS)),
            svg.label(_LEFT, 604, _footer(report), size=17, fill=_COLORS.faint),
        ],
        background="#fdfdfb",
    )


def _headline(words: str, on: Json) -> str:
    if on is None:
        return words
    ends = [on["first"], *([on["latest"]] if on["latest"] else [])]
    return f"{words}: {' → '.join(percent(end['success']) for end in ends)}"


def _sentence(text: str) -> list[str]:
    return textwrap.wrap(visible(text), _LINE, max_lines=_LINES, placeholder=" …")


def _footer(report: Json) -> str:
    run = report["run"]
    parts = (
        counted(run["iterations_done"], "iteration"),
        counted(report["rollouts"]["total"], "rollout"),
        duration(sum(phase_seconds(report).values())),
        f"{visible(run['environment'])} from {visible(run['base_model'])}",
        f"seed {run['seed']}",
    )
    return _cut(" · ".join(parts), 118)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
