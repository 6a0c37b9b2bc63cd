"""`learnloop judges`: the available judges, and whether two of them agree."""

import json
from typing import Annotated, Self

import typer
from rich.table import Table

from app.cli.charts import figure
from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.runs import RunId
from app.cli.terminal import plain, print_json, results
from environment.json_type import Json

app = typer.Typer(no_args_is_help=True, help="List judges, and see whether two of them agree.")

_JUDGING_TIMEOUT_S = 3_600.0
_SHOWN = 10


class JudgeService(Service):
    """The part of the API for judges."""

    def __enter__(self) -> Self:
        return self

    def judges(self) -> list[Json]:
        """Return all available judges."""
        items: list[Json] = self._call("GET", "/judges")["items"]
        return items

    def agreement(self, run_id: str, request: Json) -> Json:
        """Have two judges score rollouts of the run."""
        return self._call("POST", f"/runs/{run_id}/judge-agreement", json=request)


@app.command("list")
def list_(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the judges that can score rollouts."""
    with JudgeService(url) as service:
        found = service.judges()
    print_json(found) if as_json else results.print("\n".join(each["name"] for each in found))


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
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have two judges score the same rollouts of a run, and show where they differ."""
    request = {"judges": [_parsed(each) for each in judge], "kind": kind, "trajectories": trajectories}
    with JudgeService(url, timeout_s=_JUDGING_TIMEOUT_S) as service:
        found = service.agreement(run_id, request)
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
    results.print(
        f"{' and '.join(names)} on {found['trajectories']} rollouts; both scored {found['both_scored']}", soft_wrap=True
    )
    for each in found["judges"]:
        cost = "unknown" if each["cost_usd"] is None else f"${each['cost_usd']:.4f}"
        results.print(
            f"  {each['name']}: mean {figure(each['mean'])}, {each['requests']} requests, {each['cached']} cached, "
            f"cost {cost}",
            soft_wrap=True,
        )
    results.print(
        f"same decisions {figure(found['same_decisions'])}, kappa {figure(found['kappa'])}, "
        f"rank correlation {figure(found['rank_correlation'])}"
    )
    if found["disagreements"]:
        results.print(_table(names, found["disagreements"][:_SHOWN]))
    if found["disagreement_count"] > _SHOWN:
        results.print(f"{found['disagreement_count']} differ in all; --json shows up to 100")


def _table(names: list[str], disagreements: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TRAJECTORY", no_wrap=True)
    for name in names:
        table.add_column(name.upper(), no_wrap=True, justify="right")
    table.add_column("WHY")
    for each in disagreements:
        table.add_row(each["trajectory_id"], *map(figure, each["scores"]), plain(" / ".join(each["explanations"])))
    return table
