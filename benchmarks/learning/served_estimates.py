"""Whether the gain that is estimated on held-out served answers is the true one.

    python -m benchmarks.learning.served_estimates --seeds 0 1 2 3 4 5 6 7 8 9

In each seed users ask the tiny email agent 1,000 questions, as in benchmarks.learning.served. The answers to three
fifths of the users train it. After six of its 16 steps, so after 60 steps of ten seeds, the product's own estimate is
compared with what the steps really gained: its sampled success at 320 other questions, less that of the start at the
same ones with the same seeds, times the share of right answers that is reported. That difference is a sample too. An
interval holds if the true gain is in it as far as both can tell: its half-width and the sample's are added as squares.

Prints each step's figures as they come. Fails if fewer than 85% of the 90% intervals hold. A seed takes about eight
minutes of one core.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from math import hypot, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, stdev

import structlog

from benchmarks import processes
from benchmarks.learning.served import ARMS, MEASURED, Market, chosen, learn, recorded
from benchmarks.served_users import GOOD_REPORTED
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.statistics.off_policy import ScoredAnswer, gain

GOAL = 0.85
"""Least share of the intervals that hold."""
_ARM = ARMS["three fifths"]
_Z = 1.645
_CHAMPION_STEPS = 6


def estimates(seed: int, sessions: int, questions: int, measured: int, report: Callable[..., None]) -> list[Json]:
    """Return what was estimated after each measured step of a reign, and what was true."""
    figures, rng = list[Json](), Random(f"{seed}/0")
    with tempfile.TemporaryDirectory() as directory:
        market = Market(Path(directory), "cpu", seed, _CHAMPION_STEPS)
        before = market.successes(questions)
        market.fork(market.champion, "estimated")
        answers = recorded(market.served(0, sessions), bot=False, rng=rng)
        rows, held_out = chosen(answers, _ARM, rng), chosen(answers, _ARM, rng, held_out=True)
        expected = fmean(outcome for _, outcome in rows)
        steps = {round(_ARM.steps * (number + 1) / measured) for number in range(measured)}

        def after(step: int) -> None:
            if step not in steps:
                return
            ratios = market.log_ratios([attempt for attempt, _ in held_out])
            scored = [
                ScoredAnswer(ratio, outcome, expected) for ratio, (_, outcome) in zip(ratios, held_out, strict=True)
            ]
            pairs = zip(market.successes(questions), before, strict=True)
            gained = [GOOD_REPORTED * (new - old) for new, old in pairs]
            figures.append(_compared(step, gain(scored), gained))
            report(seed=seed, held_out=len(held_out), moved=round(-fmean(ratios), 3), **figures[-1])

        learn(market, _ARM, rows, [attempt for attempt, _ in held_out][:MEASURED], after)
    return figures


def _compared(step: int, estimate: tuple[float, float, float] | None, gained: list[float]) -> Json:
    truth, margin = fmean(gained), _Z * stdev(gained) / sqrt(len(gained))
    if estimate is None:
        return {"step": step, "true": truth, "estimated": None}
    middle, low, high = estimate
    return {
        "step": step,
        "true": round(truth, 4),
        "true_margin": round(margin, 4),
        "estimated": [round(end, 4) for end in (middle, low, high)],
        "holds": abs(middle - truth) <= hypot((high - low) / 2, margin),
        "holds_alone": low <= truth <= high,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--questions", type=int, default=320, help="that the true success is sampled at")
    parser.add_argument("--measured", type=int, default=6, help="steps of each seed that are compared")
    options = parser.parse_args()
    set_cpu_mode()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def report(**figures: Json) -> None:
        print(json.dumps(figures), flush=True)

    report(machine=processes.machine())
    figures = [
        one
        for seed in options.seeds
        for one in estimates(seed, options.sessions, options.questions, options.measured, report)
    ]
    shown = [one for one in figures if one["estimated"] is not None]
    share = fmean(one["holds"] for one in shown) if shown else 0.0
    off = fmean(one["estimated"][0] - one["true"] for one in shown) if shown else 0.0
    alone = fmean(one["holds_alone"] for one in shown) if shown else 0.0
    report(
        steps=len(figures),
        without_estimate=len(figures) - len(shown),
        hold=round(share, 3),
        hold_alone=round(alone, 3),
        mean_estimate_less_truth=round(off, 4),
        goal=GOAL,
    )
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
