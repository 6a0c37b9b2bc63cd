"""ART-E's reward, part by part (OpenPipe ART, `examples/art-e`, `calculate_reward`).

Ranges: malformed call -2 to -1, wrong answer -1 to 0, no answer 0 to 1, right answer 1 to 2. Within a
range small credits pay for progress: the source was among the hits, was read, no unknown id was asked
for, the sources given are right; a right answer is also paid for few sources and few turns.

One figure differs: right sources of a right answer earn 0.6, not 0.3. With 0.3 the pay for a source drowned in the
noise of the other decisions, and some runs lost the habit of citing before they answered well enough to be paid for it.
"""

from collections.abc import Mapping

from environment.base import Outcome

CORRECT_FROM = 0.5
"""The judge's score from which an answer counts as right."""

_BASE: Mapping[str, float] = {"malformed": -2.0, "wrong": -1.0, "no_answer": 0.0, "right": 1.0}


def verdict(outcome: Outcome, score: float) -> str:
    """One of malformed, wrong, no_answer, right."""
    if outcome["finish"] == "malformed":
        return "malformed"
    if outcome["finish"] != "answered":
        return "no_answer"
    return "right" if score >= CORRECT_FROM else "wrong"


def reward_parts(outcome: Outcome, score: float) -> dict[str, float]:
    """Named parts; their sum, in [-2, 2], is the reward."""
    kind = verdict(outcome, score)
    parts = {kind: _BASE[kind]}
    if kind == "right":
        if outcome["sources_correct"]:
            parts["sources_correct"] = 0.6
        if outcome["sources"]:
            parts["few_sources"] = 0.1 / len(outcome["sources"])
        # Several calls in one turn may be more than there are turns.
        parts["few_turns"] = 0.1 * max(0.0, 1 - outcome["turns"] / outcome["max_turns"])
        return parts
    credits = {
        "found_source": outcome["found_source"],
        "read_source": outcome["read_source"],
        "no_invalid_read": not outcome["read_invalid"],
        "sources_correct": outcome["sources_correct"],
    }
    return parts | {name: 0.1 for name, earned in credits.items() if earned}
