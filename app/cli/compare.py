"""`learnloop runs compare`: the settings in which two runs differ, and what came of it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Annotated

import typer
from rich.text import Text

from app.cli.client import Service
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.terminal import plain, print_json, results
from environment.json_type import Json
from training.statistics.difference import Difference, difference

_KINDS = (("validation", "sampled"), ("validation", "greedy"), ("test", "sampled"), ("test", "greedy"))
_NAMES = ("model.name", "seed")
"""Settings that differ in runs that are compared for another reason."""


def compare(
    one: Annotated[str, typer.Argument(metavar="RUN_ID")],
    other: Annotated[str, typer.Argument(metavar="RUN_ID")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: settings that differ, held-out success paired by scenario, and what was diagnosed."""
    with Service(url) as service:
        runs = [service.run(id) for id in (one, other)]
        latest = [_latest(service, run) for run in runs]
        causes = [service.diagnosis(run["run_id"])["cause"] for run in runs]
    settings = [dict(_flat(run["request"])) for run in runs]
    differing = {
        name: [each.get(name) for each in settings]
        for name in sorted(settings[0].keys() | settings[1].keys())
        if settings[0].get(name) != settings[1].get(name)
    }
    found = {
        f"{split} {mode}": difference(latest[0][split, mode], latest[1][split, mode])
        for split, mode in _KINDS
        if (split, mode) in latest[0] and (split, mode) in latest[1]
    }
    if as_json:
        held_out = {kind: None if each is None else asdict(each) for kind, each in found.items()}
        texts = [run["verdict"]["text"] for run in runs]
        print_json({"settings": differing, "held_out": held_out, "verdicts": texts, "causes": causes})
        return
    for line in _lines(runs, differing, found, causes):
        results.print(line, soft_wrap=True)


def _latest(service: Service, run: Json) -> dict[tuple[str, str], dict[str, float]]:
    """Return the success by scenario in the newest evaluation of each kind."""
    found = {}
    for split, mode in _KINDS:
        of_kind = [each for each in run["evaluations"] if (each["split"], each["mode"]) == (split, mode)]
        iterations = [each["iteration"] for each in of_kind]
        if not iterations:
            continue
        filters = {"kind": "evaluation", "split": split, "mode": mode, "iteration": max(iterations)}
        successes: dict[str, list[bool]] = {}
        for row in service.trajectories(run["run_id"], **filters):
            if row["reward"] is not None or row["error"] is not None:
                successes.setdefault(row["scenario_id"], []).append(bool(row["success"]))
        found[split, mode] = {id: fmean(each) for id, each in successes.items()}
    return found


def _flat(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the settings of a request by their path, such as `evaluation.every`."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _flat(each, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _lines(
    runs: list[Json], differing: Mapping[str, list[Json]], found: Mapping[str, Difference | None], causes: list[Json]
) -> Iterator[Text]:
    for letter, run, cause in zip("AB", runs, causes, strict=True):
        model = f"{run['model']['project']}/{run['model']['name']}"
        yield plain(f"{letter}  {run['run_id']}  {model}  {run['status']}", "bold")
        yield plain(f"   {run['verdict']['text']}")
        yield plain(f"   diagnosed: {cause or 'nothing'}")
    yield plain("settings that differ", "bold")
    shown = {name: values for name, values in differing.items() if name not in _NAMES}
    for name, (before, after) in shown.items():
        yield plain(f"   {name}: {_short(before)} | {_short(after)}")
    if not shown:
        yield plain("   none but name and seed")
    yield plain("held-out success of B minus A, newest evaluations, paired by scenario", "bold")
    for kind, each in found.items():
        if each is None:
            yield plain(f"   {kind}: no scenario in common")
            continue
        shown_as = "a difference" if each.is_shown else "no difference shown"
        yield plain(
            f"   {kind}: {100 * each.mean:+.0f} points [{100 * each.low:+.0f}, {100 * each.high:+.0f}], "
            f"{each.scenarios} scenarios, {each.changed} differ: {shown_as}"
        )
    if not found:
        yield plain("   both have no held-out evaluation of the same kind")


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}\N{HORIZONTAL ELLIPSIS}"
