"""The head of a report: whether the run learned, in words and figures."""

from learnloop_service.app.reports.charts import phase_seconds
from learnloop_service.app.reports.format import dollars, duration, moment, percent, points
from learnloop_service.app.reports.html import Html, h, joined
from learnloop_service.app.runs.cost import cost_of
from learnloop_service.app.statistics.verdict import headline, on_same_scenarios
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, in_words

STATES = {
    "learned": "Learned",
    "got_worse": "Got worse",
    "no_change_shown": "No change shown",
    "too_early": "Too early to say",
    "demonstrations_learned": "Demonstrations learned",
    "demonstrations_not_learned": "Demonstrations not learned",
}
"""States of a verdict, as titles."""


def name_of(run: Json) -> str:
    """Return the run's name. Reports of earlier versions have none, and must be rendered as before."""
    name: str = run.get("name", run["model"])
    return name


def head(report: Json) -> Html:
    """Return the head of the page."""
    run, verdict = report["run"], report["verdict"]
    on = verdict["on"]
    share = ""
    if on is not None:
        ends = [on["first"], *([on["latest"]] if on["latest"] else [])]
        share = joined(
            h("strong", " → ".join(percent(end["success"]) for end in ends)),
            h("span", " of held-out tasks right"),
        )
    return h(
        "header",
        h(
            "p",
            h("span", "Learnloop report", class_="brand"),
            h("span", name_of(run), class_="name"),
            h("span", run["status"], class_="chip"),
            h("span", moment(run["finished_at"] or report["written"]["at"]), class_="muted"),
            class_="top",
        ),
        h("h1", f"{STATES[verdict['state']]}{': ' if share else ''}", share, class_=f"verdict {verdict['state']}"),
        h("p", verdict["text"], class_="lead"),
        _test_line(report),
        _amounts(report),
        _causes(report),
        *(
            h("p", f"Judged again by {rejudging['judge']}: {rejudging['text']}", class_="muted")
            for rejudging in report.get("rejudgings", ())  # earlier versions wrote none
        ),
    )


def _test_line(report: Json) -> Html | None:
    """Return a sentence on the test split, unless that is the headline."""
    rows = report["evaluations"]["items"]
    tests = [row for row in rows if (row["split"], row["mode"]) == ("test", "sampled")]
    if len(tests) < 2 or headline(rows)[0]["split"] == "test":
        return None
    first, latest = tests[0], on_same_scenarios(tests[0], tests[-1])
    change = latest["difference"]
    change_text = (
        ""
        if change is None
        else (
            f", {points(100 * change['mean'])} points (95% interval {points(100 * change['low'])} to "
            f"{points(100 * change['high'])})"
        )
    )
    return h(
        "p",
        f"On the test split, which chose no checkpoint: {percent(first['success'])} → {percent(latest['success'])} of "
        f"{counted(latest['scenarios'], 'task')}{change_text}.",
        class_="muted",
    )


def _amounts(report: Json) -> Html:
    run, cost = report["run"], report["cost"]
    tokens = sum(sums["prompt_tokens"] + sums["completion_tokens"] for sums in cost["phases"].values())
    worked_s = sum(phase_seconds(report).values())
    price = report["written"].get("machine_price_per_hour")  # reports of earlier versions have none
    usd = cost_of((sums["usd"] for sums in cost["phases"].values()), worked_s, price)
    amounts = {
        "cost": _gain_for(report["verdict"]["points"], usd.total_usd),
        "iterations": f"{run['iterations_done']:,}"
        + (f" of {run['iterations_total']:,}" if run["iterations_done"] != run["iterations_total"] else ""),
        "rollouts": f"{report['rollouts']['total']:,}",
        "tokens": f"{tokens:,}",
        "working time": duration(worked_s),
        "machine time": None if price is None else f"{dollars(usd.machine_usd)} at {dollars(price)} an hour",
        "judge models": None if usd.calls_usd is None else dollars(usd.calls_usd),
        "seed": str(run["seed"]),
    }
    return h(
        "dl", *(h("div", h("dt", name), h("dd", value)) for name, value in amounts.items() if value), class_="amounts"
    )


def _gain_for(gained: float | None, total: float | None) -> str | None:
    if total is None:
        return None
    return dollars(total) if gained is None else f"{points(gained)} points for {dollars(total)}"


def _causes(report: Json) -> Html | None:
    if not report["causes"]:
        return None
    return h(
        "section",
        h("h2", "What its records show"),
        h(
            "ul",
            *(
                h(
                    "li",
                    h("strong", in_words(cause["cause"])),
                    f" ({cause['severity']}): {cause['summary']} ",
                    h("em", cause["remedy"]),
                )
                for cause in report["causes"]
            ),
        ),
        class_="notice",
    )
