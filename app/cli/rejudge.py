"""`learnloop runs rejudge`: score a run's stored rollouts by another judge, and see what that would have changed."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import figure, percent
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.evaluations import watch_evaluation
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.run_request import overlay
from learnloop_service.app.cli.terminal import plain, print_result, print_warnings, progress
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed


def rejudge(
    run_id: RunId,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|JSON",
            help='Name of the judge, or an object such as \'{"name": "ruler", "config": {"passes": 4}}\', or a list of '
            "several with weights. \\[default: the run's, with today's code]",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Which rollouts: train or evaluation. Repeatable. \\[default: train]"),
    ] = None,
    first: Annotated[int | None, typer.Option(min=0, help="First iteration.")] = None,
    last: Annotated[int | None, typer.Option(min=0, help="Last iteration.")] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=8, help="How often each rollout is judged; from 2 on the judge's noise is known.")
    ] = 1,
    max_usd: Annotated[float | None, typer.Option(help="Pause before it costs more US dollars than this.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would judge and cost.")] = False,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Score a run's stored rollouts again. The run stays as it is. Ctrl-C stops watching only."""
    fields = {"judge": _judge(judge), "kinds": kind, "iterations.first": first, "iterations.last": last}
    body = overlay({"repeats": repeats, "dry_run": dry_run}, {**fields, "budget.max_usd": max_usd})
    accepted = service.call("POST", f"/runs/{segment(run_id)}/rejudge", json=body)
    if dry_run:
        print_result(accepted, as_json, plain(_plan(accepted)))
        return
    print_warnings(accepted)
    progress.print(plain(_plan(accepted)), soft_wrap=True)
    ended = watch_evaluation(service, accepted["evaluation_id"])
    print_result(ended, as_json, *_lines(ended))
    raise typer.Exit(0 if ended["status"] == "completed" else 1)


def _judge(text: str | None) -> Json:
    if text is None or not text.lstrip().startswith(("{", "[")):
        return None if text is None else {"name": text}
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--judge is not valid JSON: {error}") from error


def _plan(accepted: Json) -> str:
    cost = accepted["cost"]
    price = "" if cost["usd"] is None else f" About ${cost['usd']:.2f} [${cost['low']:.2f}, ${cost['high']:.2f}]:"
    verdicts, groups, rollouts = (counted(accepted[f"{unit}s"], unit) for unit in ("verdict", "group", "rollout"))
    return f"{verdicts} on {groups} of {rollouts} in all.{price} {cost['reason']}"


def _lines(ended: Json) -> Iterator[Text]:
    yield plain(f"rejudging {ended['evaluation_id']}: {ended['status']}", "bold")
    if ended["error"]:
        yield plain(f"  {ended['error']}", "red")
    report = (ended["report"] or {}).get("rejudge")
    if report is None:
        return
    yield plain(report["text"], "bold")
    if report.get("conclusive") is False:
        return
    for iteration in report["iterations"]:
        reward, success = iteration["reward"], iteration["success"]
        yield plain(
            f"  iteration {iteration['iteration']:>3}: {percent(iteration['flipped'])} of advantages change sign; "
            f"reward {figure(reward['before'])} -> {figure(reward['now'])}, success {percent(success['before'])} -> "
            f"{percent(success['now'])}; groups with a signal: "
            f"{signed(iteration['gained'])} {signed(-iteration['lost'])}"
        )
    for evaluation in report["evaluations"]:
        success = evaluation["success"]
        yield plain(
            f"  {evaluation['split']} {evaluation['mode']} after iteration {evaluation['iteration']}: success "
            f"{percent(success['before'])} -> {percent(success['now'])}"
        )
    if report["best_step"] is not None:
        yield plain(f"  best checkpoint: step {report['best_step']['before']} -> step {report['best_step']['now']}")
    if report["noise"] is not None:
        noise = report["noise"]
        yield plain(
            f"  the judge's noise: standard deviation {noise['deviation']:.3f} of a rollout's score, ICC "
            f"{figure(noise['icc'])}, {percent(noise['floor'])} of advantages change sign between two repeats"
        )
    for rollout in report["largest"][:3]:
        reward = rollout["reward"]
        yield plain(
            f"  {rollout['trajectory_id']}: reward {figure(reward['before'])} -> {figure(reward['now'])}: "
            f"{rollout['explanations'][1][:160]}"
        )
