"""Computes the figures of an evaluation from its judged rollouts. The stored trajectories suffice to recompute them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from learnloop_service.app.domain.stored_evaluation import Slot, StoredEvaluation
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.diagnosis.patterns import ending_of
from learnloop_service.training.statistics.bootstrap import DRAWS, LEVEL, intervals
from learnloop_service.training.statistics.shares import wilson

_PAIRED = ("success", "reward", "sources", "turns")
"""Figures that have intervals."""
_METHOD = "paired bootstrap over scenarios, percentile intervals; shares of one model: Wilson"
_MOST_UNDELIVERED = 0.02
"""Largest share of rollouts that may begin without a part of their prompt."""
_SHARES = ("success", "sources")
"""Figures that are shares. The bootstrap's interval of a share of 100% is 100% to 100%, even for one scenario."""


def report_of(request: StoredEvaluation, rows: Sequence[Any], costs: Sequence[float | None]) -> dict[str, Json]:
    """Return the report. `rows` are the evaluation's trajectories; `costs` is per model, None if unknown.

    A failed rollout counts as no success. A rollout that the judge could not score is left out of success and reward. A
    model that never answered has an `error` instead of figures. A scenario is compared only if every other model has a
    figure for it.
    """
    by_slot = {Slot.parse(row.slot): row for row in rows}
    errors = [why_no_figures(number, by_slot) for number in range(len(request.models))]
    measured = [number for number, error in enumerate(errors) if error is None]
    compared = {name: _compared(name, request, by_slot, measured) for name in _PAIRED}
    models = []
    for number, contestant in enumerate(request.models):
        model_rows = [row for slot, row in sorted(by_slot.items()) if slot.model == number]
        error = errors[number]
        models.append(
            {
                "label": contestant.label,
                "kind": contestant.kind,
                "model": contestant.model,
                "step": contestant.step,
                "prompt": contestant.prompt and contestant.prompt.model_dump(),
                **{name: _mean_with_interval(name, comparison, number) for name, comparison in compared.items()},
                "difference": {
                    name: comparison["differences"].get(number) if comparison else None
                    for name, comparison in compared.items()
                },
                **_counts(model_rows),
                **_usage(model_rows if error is None else ()),
                "cost_usd": costs[number] if error is None else None,
                "error": error,
                "unreachable": bool(_lacking(model_rows)),
            }
        )
    return {
        "scenarios": request.scenarios,
        "split": request.split,
        "samples": request.samples,
        "compared": {name: comparison["count"] if comparison else 0 for name, comparison in compared.items()},
        "method": {"name": _METHOD, "draws": DRAWS, "level": LEVEL},
        "models": models,
    }


def why_no_figures(model: int, rows: Mapping[Slot, Any]) -> str | None:
    """Return why the rollouts of a model say nothing about it, or None if they do.

    They say nothing if all of them failed before the model had answered once, as with a wrong key, or if its prompt
    reached the model in too few of them: then they show what the agent does without it.
    """
    model_rows = [row for slot, row in rows.items() if slot.model == model]
    if lacking := _lacking(model_rows):
        return (
            f"its prompt is unreachable: {len(lacking)} of {counted(len(model_rows), 'rollout')} began without a part "
            f"of it, for example {lacking[0].id}. The agent has to read its prompt, or to bring the texts that it "
            "replaces (docs/prompts.md#own-agents)"
        )
    if not model_rows or any(row.error is None or row.turns for row in model_rows):
        return None
    reason, _ = Counter(row.error for row in model_rows).most_common(1)[0]
    return f"none of its {counted(len(model_rows), 'rollout')} got an answer: {reason}"


def _lacking(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the rollouts of a model that began without a part of its prompt, if there are too many of them."""
    lacking = [row for row in rows if row.undelivered_parts]
    return lacking if len(lacking) > _MOST_UNDELIVERED * len(rows) else ()


def models_without_figures(report: Mapping[str, Json]) -> dict[int, str]:
    """Return the models of a report that have no figures, by number, each with a sentence that says why."""
    return {
        number: f"{model['label']} has no figures: {model['error']}"
        for number, model in enumerate(report["models"])
        if model.get("error") is not None  # reports of earlier versions have no such field
    }


def differences(request: StoredEvaluation, rows: Mapping[Slot, Any]) -> list[float]:
    """Return the second model's success minus the first's, for each scenario with figures for both, in order."""
    gains = []
    for unit in request.units:
        first, second = (unit_figure("success", unit, rows, model) for model in (0, 1))
        if first is not None and second is not None:
            gains.append(second - first)
    return gains


def unit_figure(name: str, unit: Sequence[tuple[int, int]], rows: Mapping[Slot, Any], model: int) -> float | None:
    """Return the mean over a model's rollouts of a unit."""
    slots = [Slot(model, *pair) for pair in unit]
    return _mean(_figure(name, rows[slot]) for slot in slots if slot in rows)


def _compared(
    name: str, request: StoredEvaluation, rows: Mapping[Slot, Any], models: Sequence[int]
) -> dict[str, Json] | None:
    """Return means and differences from the first model with intervals, by the model's number, and the number of
    scenarios behind them; None without any. Only `models`, given in order, are compared."""
    table = []
    for unit in request.units:
        figures = [unit_figure(name, unit, rows, model) for model in models]
        if None not in figures:
            table.append(figures)
    if not table or not models:
        return None
    columns = [[float(value) for value in column if value is not None] for column in zip(*table, strict=True)]
    means, differences = intervals(columns, request.seed)
    return {
        "count": len(table),
        "means": dict(zip(models, map(asdict, means), strict=True)),
        "differences": dict(zip(models[1:], map(asdict, differences[1:]), strict=True)) if models[0] == 0 else {},
    }


def _mean_with_interval(name: str, comparison: dict[str, Json] | None, model: int) -> dict[str, Json] | None:
    """Return the interval of one model's mean."""
    if comparison is None or model not in comparison["means"]:
        return None
    mean: dict[str, Json] = comparison["means"][model]
    if name not in _SHARES:
        return mean
    low, high = wilson(mean["mean"], comparison["count"])
    return {"mean": mean["mean"], "low": low, "high": high}


def _figure(name: str, row: Any) -> float | None:
    match name:
        case "success":
            return float(bool(row.success)) if row.reward is not None or row.error is not None else None
        case "reward":
            value: float | None = row.reward
            return value
        case "sources":
            right = row.outcome.get("sources_correct")
            return None if right is None else float(right)
        case _:
            return float(row.turns)


def _mean(values: Any) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _counts(rows: Sequence[Any]) -> dict[str, Json]:
    return {
        "rollouts": len(rows),
        "unscored": sum(row.reward is None and row.error is None for row in rows),
        "errors": dict(sorted(Counter(ending for row in rows if (ending := ending_of(row))).items())),
    }


def _usage(rows: Sequence[Any]) -> dict[str, Json]:
    seconds = sorted(row.seconds for row in rows)
    return {
        "prompt_tokens": _mean(row.prompt_tokens for row in rows),
        "completion_tokens": _mean(row.completion_tokens for row in rows),
        "seconds_p50": median(seconds) if seconds else None,
        "seconds_p95": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))] if seconds else None,
    }
