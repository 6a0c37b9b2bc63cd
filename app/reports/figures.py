"""Recomputes the figures of a report from the rollouts in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from learnloop_service.app.reports.examples import RULE, examples, right_of
from learnloop_service.app.reports.rollouts import (
    FAILED,
    RolloutBatch,
    Row,
    batches_of,
    compared,
    digest,
    evaluated,
    scored,
)
from learnloop_service.app.statistics.verdict import verdict
from learnloop_service.environment.json_type import Json
from learnloop_service.training.scoring import held_out_figures, malformed_share, success_rate, successes, summarise
from learnloop_service.training.statistics.difference import difference
from learnloop_service.training.types import EvaluationConfig


class Figure(NamedTuple):
    """A figure as a report states it, and as it is computed from the rollouts in the report."""

    name: str
    stated: Json
    computed: Json

    @property
    def agrees(self) -> bool:
        return bool(self.stated == self.computed)


def figures(report: Json) -> list[Figure]:
    """Recompute every figure whose rollouts are in the report. Exact, because both come from the same functions."""
    batches = batches_of(report)
    return [
        *_iterations(report, batches),
        *_evaluations(report, batches),
        *_verdict(report),
        *_examples(report),
        *_digests(report, batches),
    ]


def _iterations(report: Json, batches: Mapping[RolloutBatch, Sequence[Row]]) -> Iterator[Figure]:
    of_training = {batch.iteration: rows for batch, rows in batches.items() if batch.is_training}
    whole = _whole(report, batches)
    for item in report["iterations"]["items"]:
        number = item["iteration"]
        where = f"iteration {number}"
        if number in whole:
            yield Figure(
                f"{where}: failed rollouts", item["failed_rollouts"], sum(r.end == FAILED for r in whole[number])
            )
        if (rows := of_training.get(number)) is None:
            continue
        rollouts = scored(rows, report["scenarios"])
        for name, value in asdict(summarise(rollouts)).items():
            yield Figure(f"{where}: reward {name}", item["rewards"][name], value)
        yield Figure(f"{where}: success", item["success"], success_rate(rollouts))
        yield Figure(f"{where}: malformed", item["malformed"], malformed_share(rollouts))


def _whole(report: Json, batches: Mapping[RolloutBatch, Sequence[Row]]) -> dict[int, list[Row]]:
    """Return the rollouts of the iterations of which all are listed."""
    rows: dict[int, list[Row]] = {}
    for batch, some in batches.items():
        rows.setdefault(batch.iteration, []).extend(some)
    counts = {digest["from"]: digest["rollouts"] for digest in report["digests"] if digest["from"] == digest["to"]}
    return {
        iteration: of_iteration
        for iteration, of_iteration in rows.items()
        if counts.get(iteration) == len(of_iteration)
    }


def _evaluations(report: Json, batches: Mapping[RolloutBatch, Sequence[Row]]) -> Iterator[Figure]:
    scenarios, settings = report["scenarios"], report["settings"].get("evaluation", {})
    baseline: dict[tuple[str, str], dict[str, float]] = {}
    for item in report["evaluations"]["items"]:
        rows = batches.get(evaluated(item))
        if rows is None:
            continue
        rollouts, kind = scored(rows, scenarios), (item["split"], item["mode"])
        where = evaluation_name(item)
        samples = settings.get("samples", EvaluationConfig().samples) if item["mode"] == "sampled" else 1
        computed = held_out_figures(rollouts, samples, by_scenario=settings.get("seed") is not None)
        for name, value in asdict(computed).items():
            yield Figure(f"{where}: {name.replace('_', ' ')}", item[name], value)
        yield Figure(f"{where}: turns", item["turns"], float(sum(row.turns for row in rows)) / len(rows))
        if item["iteration"] == 0:
            baseline[kind] = successes(rollouts)
        elif item["difference"] is not None and kind in baseline:
            change = difference(baseline[kind], successes(rollouts))
            yield Figure(f"{where}: difference", item["difference"], None if change is None else asdict(change))


def evaluation_name(item: Mapping[str, Any]) -> str:
    """Return the name of a held-out evaluation."""
    when = "before training" if item["iteration"] == 0 else f"after iteration {item['iteration']}"
    return f"{item['split']}, {item['mode']}, step {item['step']}, {when}"


def _verdict(report: Json) -> Iterator[Figure]:
    """Compute the verdict from the evaluations in the report."""
    stated = report["verdict"]
    items, losses = report["evaluations"]["items"], stated.get("losses")  # earlier versions wrote none
    computed = asdict(verdict(items, report["run"]["best_step"], stated["causes"], losses))
    for name in ("state", "points", "interval", "on", "text"):
        value = computed[name]
        yield Figure(f"verdict: {name}", stated[name], list(value) if isinstance(value, tuple) else value)


def _examples(report: Json) -> Iterator[Figure]:
    yield Figure("examples: rule", report["examples"]["rule"], RULE)
    items = report["examples"]["items"]
    if (ends := compared(report)) is None:
        yield Figure("examples: number", len(items), 0)
        return
    chosen = examples(ends[0], ends[1], report["scenarios"])
    yield Figure("examples: tasks", [item["scenario_id"] for item in items], [example.scenario for example in chosen])
    for number, (item, example) in enumerate(zip(items, chosen, strict=False), 1):
        yield Figure(f"example {number}: why it is shown", item["why"], example.why)
        for side, row, rows in (("before", example.before, ends[0]), ("after", example.after, ends[1])):
            right, samples = right_of(rows, row.scenario)
            computed = {
                "trajectory_id": row.id, "right": right, "samples": samples, "success": row.success,
                "score": row.score, "reward": row.reward, "turns": row.turns,
            }  # fmt: skip
            for name, value in computed.items():
                yield Figure(f"example {number}, {side} training: {name}", item[side][name], value)


def _digests(report: Json, batches: Mapping[RolloutBatch, Sequence[Row]]) -> Iterator[Figure]:
    whole = _whole(report, batches)
    for item in report["digests"]:
        if item["from"] == item["to"] and item["from"] in whole:
            computed = digest(row.sha256 for row in whole[item["from"]])
            yield Figure(f"digest of iteration {item['from']}", item["sha256"], computed)
    total = sum(item["rollouts"] for item in report["digests"])
    yield Figure("rollouts: total", report["rollouts"]["total"], total)
    yield Figure("rollouts: listed", report["rollouts"]["listed"], sum(map(len, batches.values())))
