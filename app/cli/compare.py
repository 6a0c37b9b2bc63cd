"""`learnloop runs compare`: the settings in which two runs differ, and what came of it."""

from collections.abc import Iterator, Mapping

from rich.text import Text

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import plain, print_result
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, signed

_SHOWN = 5
"""Number of scenarios that are printed for each run."""
_NAMES = ("model.name", "seed")
"""Settings that differ between most runs, so the comparison does not print them."""


def compare(
    one: RunId,
    other: RunId,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: settings that differ, held-out questions won and lost, and what was diagnosed."""
    runs = [service.run(id) for id in (one, other)]
    comparison = service.call("GET", f"/runs/{segment(one)}/comparison", params={"other": other})
    held_out, seeds = comparison["held_out"], [comparison.get(f"{side}_held_out_seed") for side in ("run", "other")]
    causes = [service.diagnosis(run["run_id"])["cause"] for run in runs]
    settings = [dict(_flat(run["request"])) for run in runs]
    differing = {
        name: [of_run.get(name) for of_run in settings]
        for name in sorted(settings[0].keys() | settings[1].keys())
        if settings[0].get(name) != settings[1].get(name)
    }
    compared = {f"{kind['split']} {kind['mode']}": _as_json(kind) for kind in held_out}
    texts = [run["verdict"]["text"] for run in runs]
    document = {"settings": differing, "held_out": compared, "verdicts": texts, "causes": causes}
    print_result({**document, "held_out_seeds": seeds}, as_json, *_lines(runs, differing, held_out, causes, seeds))


def _as_json(kind: Json) -> Json:
    wins = {"a_wins": kind["run_wins"], "b_wins": kind["other_wins"]}
    ids = {name: [scenario["scenario_id"] for scenario in scenarios] for name, scenarios in wins.items()}
    return None if kind["difference"] is None else {**kind["difference"], **ids}


def _flat(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the settings of a request by their path, such as `evaluation.every`."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _lines(
    runs: list[Json], differing: Mapping[str, list[Json]], held_out: list[Json], causes: list[Json], seeds: list[Json]
) -> Iterator[Text]:
    for letter, run, cause in zip("AB", runs, causes, strict=True):
        name = run["name"] or f"{run['model']['project']}/{run['model']['name']}"
        yield plain(f"{letter}  {name}  {run['run_id']}  {run['status']}", "bold")
        yield plain(f"   {run['verdict']['text']}")
        yield plain(f"   diagnosed: {cause or 'nothing'}")
    yield plain("settings that differ", "bold")
    settings = {name: values for name, values in differing.items() if name not in _NAMES}
    for name, (before, after) in settings.items():
        yield plain(f"   {name}: {_short(before)} | {_short(after)}")
    if not settings:
        yield plain("   none but name and seed")
    yield plain("held-out success of B minus A, newest evaluations, paired by scenario", "bold")
    if seeds[0] != seeds[1]:
        yield plain(
            f"   the held-out scenarios were drawn with different seeds (evaluation.seed), A's with {seeds[0]} and B's "
            f"with {seeds[1]}: only scenarios that both have are compared"
        )
    for number, kind in enumerate(held_out):
        yield from _held_out(kind, number == 0)
    if not held_out:
        yield plain("   both have no held-out evaluation of the same kind")


def _held_out(kind: Json, is_headline: bool) -> Iterator[Text]:
    name, difference = f"{kind['split']} {kind['mode']}", kind["difference"]
    if difference is None:
        yield plain(f"   {name}: no scenario in common")
        return
    mean, low, high = (signed(100 * difference[figure]) for figure in ("mean", "low", "high"))
    shown_as = "a difference" if difference["is_shown"] else "no difference shown"
    yield plain(
        f"   {name}: {mean} points [{low}, {high}], {counted(difference['scenarios'], 'scenario')}, "
        f"{kind['other_better']} won and {kind['run_better']} lost by B: {shown_as}"
    )
    for title, wins in (("B", kind["other_wins"]), ("A", kind["run_wins"])) if is_headline else ():
        for win in wins[:_SHOWN]:
            task = win["scenario"]["task"]
            question = task.get("question") or task.get("prospect") or win["scenario_id"]
            shares = f"A {win['run']['success']:.0%}, B {win['other']['success']:.0%}"
            yield plain(f"      {title} is better: {_short(question)} ({shares})")
        if len(wins) > _SHOWN:
            yield plain(f"      {title} is better on {len(wins) - _SHOWN} more; the page of the comparison lists them")


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}\N{HORIZONTAL ELLIPSIS}"
