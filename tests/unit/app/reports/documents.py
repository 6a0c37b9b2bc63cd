"""Reports whose figures follow from their rollouts, of any size, made without a service."""

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256
from random import Random
from typing import Any

from learnloop_service.app.reports.collect import FORMAT, renderer
from learnloop_service.app.reports.examples import RULE, examples, right_of
from learnloop_service.app.reports.rollouts import RolloutBatch, Row, compared, digest, listing, scored, thinned
from learnloop_service.app.statistics.verdict import verdict
from learnloop_service.environment.json_type import Json
from learnloop_service.training.scoring import malformed_share, success_rate, successes, summarise
from learnloop_service.training.statistics.difference import difference

SCENARIOS = [f"validation.{number}" for number in range(12)]


def report(iterations: int = 4, rollouts: int = 8, every: int = 2, text: str = "12 May") -> Json:
    """A report on a run that is evaluated after every `every` iterations. `text` is that of all messages and answers
    of its examples."""
    draw = Random(7)
    batches: dict[RolloutBatch, list[Row]] = {}
    for iteration in range(iterations + 1):
        if iteration:
            batches[RolloutBatch(iteration, "train", "train", "sampled", None)] = _rows(
                draw, iteration, rollouts, iterations
            )
        if iteration % every == 0:
            batch = RolloutBatch(iteration, "evaluation", "validation", "sampled", iteration)
            batches[batch] = _rows(draw, iteration, len(SCENARIOS), iterations)
    sizes = {batch: len(rows) for batch, rows in batches.items()}
    ends = [batch for batch in batches if batch.kind == "evaluation"]
    chosen = listing(sizes, [ends[0], ends[-1]])
    evaluations = _evaluations(batches)
    every_iteration = thinned(range(iterations + 1), 500)
    document: dict[str, Json] = {
        "format": FORMAT,
        "written": {
            "at": "2026-11-26T20:00:00+00:00", "learnloop": "0.1.0", "renderer": renderer(), "python": "3.11.7",
            "system": "Linux x86_64", "cores": 2, "engine_device": "cpu",
        },
        "run": _run(iterations),
        "settings": {
            "seed": 0,
            "learning_rate": 0.0007,
            "environment": {"name": "email_search", "config": {}},
            "evaluation": {"samples": 1, "seed": 0},
        },
        "verdict": asdict(verdict(evaluations)),
        "causes": [],
        "iterations": {
            "every": every_iteration,
            "items": [_iteration(batches, n) for n in range(iterations + 1) if n % every_iteration == 0],
        },
        "evaluations": {"every": 1, "items": evaluations},
        "scenarios": SCENARIOS,
        "rollouts": {
            "total": sum(sizes.values()),
            "listed": sum(sizes[batch] for batch in chosen.batches),
            "every": chosen.every,
            "columns": list(Row._fields),
            "batches": [
                batch._asdict() | {"rows": [list(row) for row in rows]}
                for batch, rows in batches.items()
                if batch in chosen.batches
            ],
        },
        "digests": _digests(batches, iterations),
        "cost": {"phases": {"rollout": _spent(60.0), "train": _spent(30.0)}, "wall_s": 95.0, "judge_usd": 0.0},
        "checkpoints": [{"step": 0, "iteration": 0, "model": "learnloop/a@0", "success": 0.2, "is_best": False}],
    }  # fmt: skip
    document["verdict"]["interval"] = list(document["verdict"]["interval"])
    document["verdict"]["causes"] = []
    document["examples"] = {"rule": RULE, "items": _examples(document, text)}
    return document


def _rows(draw: Random, iteration: int, count: int, last: int) -> list[Row]:
    rows = []
    for number in range(count):
        right = draw.random() < 0.1 + 0.8 * iteration / last
        id = f"{iteration}-{count}-{number}".rjust(26, "0")
        hash = sha256(id.encode()).hexdigest()
        reward = 1.75 if right else -0.8
        rows.append(Row(id, number % len(SCENARIOS), float(right), reward, right, "answered", 3, hash))
    return rows


def _iteration(batches: dict[RolloutBatch, list[Row]], number: int) -> Json:
    rows = scored(batches.get(RolloutBatch(number, "train", "train", "sampled", None), []), SCENARIOS)
    figures = {"success": success_rate(rows), "malformed": malformed_share(rows), "failed_rollouts": 0}
    return {"iteration": number, "step": number, **figures, "rewards": asdict(summarise(rows))}


def _evaluations(batches: dict[RolloutBatch, list[Row]]) -> list[Any]:
    evaluations: list[Any] = []
    baseline: dict[str, float] = {}
    for batch, rows in batches.items():
        if batch.kind != "evaluation":
            continue
        rollouts = scored(rows, SCENARIOS)
        baseline = baseline or successes(rollouts)
        change = difference(baseline, successes(rollouts)) if batch.iteration else None
        figures = {
            "scenarios": len(rows), "success": success_rate(rollouts), "mean_reward": summarise(rollouts).mean,
            "malformed": 0.0, "turns": 3.0, "difference": None if change is None else asdict(change),
        }  # fmt: skip
        labels = {"iteration": batch.iteration, "split": batch.split, "mode": batch.mode, "step": batch.step}
        evaluations.append(labels | figures)
    return evaluations


def _digests(batches: dict[RolloutBatch, list[Row]], iterations: int) -> list[Json]:
    together = thinned(range(iterations + 1), 500)
    blocks: dict[int, list[tuple[int, Sequence[Row]]]] = {}
    for batch, rows in batches.items():
        blocks.setdefault(batch.iteration // together, []).append((batch.iteration, rows))
    return [
        {
            "from": min(iteration for iteration, _ in block),
            "to": max(iteration for iteration, _ in block),
            "rollouts": sum(len(rows) for _, rows in block),
            "sha256": digest(row.sha256 for _, rows in block for row in rows),
        }
        for block in blocks.values()
    ]


def _run(iterations: int) -> Json:
    return {
        "run_id": "01M8CT2T1FGQTT16ZZAFWNP5EZ", "status": "completed", "environment": "email_search",
        "judge": "reference", "backend": "embedded", "model": "learnloop/mail", "base_model": "learnloop/tiny",
        "seed": 0, "iterations_done": iterations, "iterations_total": iterations, "best_step": None, "rollouts": 1,
        "reproducible": True, "reproducible_reason": "Checked.", "parent": None, "error": None, "pruned": [],
        "created_at": "2026-11-26T19:00:00+00:00", "started_at": "2026-11-26T19:00:01+00:00",
        "finished_at": "2026-11-26T19:01:36+00:00",
    }  # fmt: skip


def _spent(seconds: float) -> Json:
    return {"seconds": seconds, "prompt_tokens": 1_000, "completion_tokens": 100, "usd": None}


def _examples(document: Json, text: str) -> list[Json]:
    ends = compared(document)
    assert ends is not None
    items = []
    for example in examples(*ends, SCENARIOS):
        sides = {
            name: {
                "trajectory_id": row.id, "iteration": 0, "step": 0, "right": right, "samples": samples,
                "success": row.success, "score": row.score, "score_explanation": text, "reward": row.reward,
                "why_no_success": None if row.success else text,
                "outcome": {"answer": text, "finish": "answered"}, "error": None, "turns": row.turns,
                "messages": [{"role": "user", "text": "When?", "calls": []}, {"role": "assistant", "text": text,
                              "calls": [{"name": "read_email", "arguments": f'{{"id": "{text}"}}'}]}],
            }
            for name, row, rows in (("before", example.before, ends[0]), ("after", example.after, ends[1]))
            for right, samples in [right_of(rows, row.scenario)]
        }  # fmt: skip
        task = {"question": text, "inbox": text}
        items.append(
            {"scenario_id": example.scenario, "why": example.why, "task": task, "reference": {"answer": text}} | sides
        )
    return items
