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
    found = service.call("GET", "/judges")["items"]
    print_json(found) if as_json else results.print("\n".join(map(_line, found)))


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
    request = {"judges": [_parsed(each) for each in judge], "kind": kind, "trajectories": trajectories}
    found = service.within(_JUDGING_TIMEOUT_S).call("POST", f"/runs/{segment(run_id)}/judge-agreement", json=request)
    print_json(found) if as_json else _print(found)


def _parsed(judge: str) -> Json:
    if not judge.lstrip().startswith("{"):
        return {"name": judge}
    try:
        return json.loads(judge)
    except ValueError as error:
        raise typer.BadParameter(f"{judge!r} is not JSON: {error}", param_hint="--judge") from error


def _print(found: Json) -> None:
    names = [each["name"] for each in found["judges"]]
    say(f"{' and '.join(names)} on {counted(found['trajectories'], 'rollout')}; both scored {found['both_scored']}")
    for each in found["judges"]:
        cost = "unknown" if each["cost_usd"] is None else f"${each['cost_usd']:.4f}"
        say(
            f"  {each['name']}: mean {figure(each['mean'])}, {counted(each['requests'], 'request')}, "
            f"{each['cached']} cached, cost {cost}"
        )
    results.print(
        f"same decisions {figure(found['same_decisions'])}, kappa {figure(found['kappa'])}, "
        f"rank correlation {figure(found['rank_correlation'])}"
    )
    if found["disagreements"]:
        columns = [whole("TRAJECTORY"), *(number(name.upper()) for name in names), Column("WHY")]
        results.print(table(columns, map(_row, found["disagreements"][:_SHOWN])))
    if found["disagreement_count"] > _SHOWN:
        results.print(f"{found['disagreement_count']} differ in all; --json shows up to 100")


def _row(disagreement: Json) -> tuple[str | Text, ...]:
    why = plain(" / ".join(disagreement["explanations"]))
    return disagreement["trajectory_id"], *map(figure, disagreement["scores"]), why
