"""`learnloop judges`: the available judges, and whether two of them agree."""

import json
from typing import Annotated

import typer
from rich.table import Column
from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.charts import figure
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import number, plain, print_json, results, say, table, whole
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(no_args_is_help=True, help="List judges, and see whether two of them agree.")

_JUDGING_TIMEOUT_S = 3_600.0
_SHOWN = 10


@app.command("list")
def list_(service: ServiceAt = HERE, as_json: AsJson = False) -> None:
    """List the judges that can score rollouts, and what those need that cannot be used here yet."""
    judges = service.call("GET", "/judges")["items"]
    print_json(judges) if as_json else results.print("\n".join(map(_line, judges)))


def _line(judge: Json) -> str:
    needs = judge.get("needs")  # older services say nothing
    return judge["name"] if needs is None else f"{judge['name']}  cannot be used yet: {needs}"


@app.command()
def agreement(
    run_id: RunId,
    judge: Annotated[
        list[str],
        typer.Option(
            metavar="NAME|JSON",
            help='Judge by name, or as \'{"name": ..., "config": ...}\'. Give one or two; one is compared with the '
            "scores that the run has.",
        ),
    ],
    kind: Annotated[str, typer.Option(help="Which rollouts: train or evaluation.")] = "evaluation",
    trajectories: Annotated[int, typer.Option(min=2, max=500, help="Maximum number of rollouts.")] = 100,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Have two judges score the same rollouts of a run, and show where they differ."""
    request = {"judges": [_parsed(text) for text in judge], "kind": kind, "trajectories": trajectories}
    figures = service.within(_JUDGING_TIMEOUT_S).call("POST", f"/runs/{segment(run_id)}/judge-agreement", json=request)
    print_json(figures) if as_json else _print(figures)


def _parsed(judge: str) -> Json:
    if not judge.lstrip().startswith("{"):
        return {"name": judge}
    try:
        return json.loads(judge)
    except ValueError as error:
        raise typer.BadParameter(f"{judge!r} is not JSON: {error}", param_hint="--judge") from error


def _print(agreement: Json) -> None:
    names = [judge["name"] for judge in agreement["judges"]]
    say(
        f"{' and '.join(names)} on {counted(agreement['trajectories'], 'rollout')}; both scored "
        f"{agreement['both_scored']}"
    )
    for judge in agreement["judges"]:
        cost = "unknown" if judge["cost_usd"] is None else f"${judge['cost_usd']:.4f}"
        say(
            f"  {judge['name']}: mean {figure(judge['mean'])}, {counted(judge['requests'], 'request')}, "
            f"{judge['cached']} cached, cost {cost}"
        )
    results.print(
        f"same decisions {figure(agreement['same_decisions'])}, kappa {figure(agreement['kappa'])}, "
        f"rank correlation {figure(agreement['rank_correlation'])}"
    )
    if agreement["disagreements"]:
        columns = [whole("TRAJECTORY"), *(number(name.upper()) for name in names), Column("WHY")]
        results.print(table(columns, map(_row, agreement["disagreements"][:_SHOWN])))
    if agreement["disagreement_count"] > _SHOWN:
        results.print(f"{agreement['disagreement_count']} differ in all; --json shows up to 100")


def _row(disagreement: Json) -> tuple[str | Text, ...]:
    why = plain(" / ".join(disagreement["explanations"]))
    return disagreement["trajectory_id"], *map(figure, disagreement["scores"]), why
