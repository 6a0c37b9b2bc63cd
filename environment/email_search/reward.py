"""The reward of a rollout, in named parts. There are three rewards:

- `art_e`: ART-E's, as published (OpenPipe ART, `examples/art-e`, `calculate_reward` of its `rollout.py`; the blog post
  "ART-E: how we built an email research agent that beats o3"). Malformed calls earn -2 to -1, a wrong answer -1 to 0,
  no answer 0 to 1, a right answer 1 to 2. Within a range, credits of 0.1 reward progress: the source was among the
  hits, it was read, no unknown id was requested, the source is among those given. A right answer earns 0.3 for its
  source, 0.1 divided by the number of sources, and up to 0.1 for few turns.
- `default`: the same, but sources must match exactly, the right sources of a right answer earn 0.6, and all malformed
  calls cost the same. With 0.3, the reward for a source drowned in the noise of the other decisions, and some runs lost
  the habit of citing before they answered well enough to be rewarded for it.
- `sources_only`: ART-E's, with the sources in place of the judge: an answer counts as right if it gives the source.
"""

from collections.abc import Callable, Mapping

from learnloop_service.environment.base import Outcome

CORRECT_FROM = 0.5
"""Lowest score at which an answer counts as right."""

Reward = Callable[[Outcome, float], dict[str, float]]
"""Computes, from outcome and score, the named parts whose sum, in [-2, 2], is the reward."""

_BASE: Mapping[str, float] = {"malformed": -2.0, "wrong": -1.0, "no_answer": 0.0, "right": 1.0}
_UNKNOWN_TOOL, _BAD_ARGUMENTS = -1.9, -1.8
"""ART-E's base rewards for a malformed call; its -2.0 is for a policy that writes calls as text."""


def verdict(outcome: Outcome, score: float) -> str:
    """Return malformed, wrong, no_answer or right."""
    if outcome["finish"] == "malformed":
        return "malformed"
    if outcome["finish"] != "answered":
        return "no_answer"
    return "right" if score >= CORRECT_FROM else "wrong"


def default(outcome: Outcome, score: float) -> dict[str, float]:
    """Compute our own reward."""
    kind = verdict(outcome, score)
    sourced = bool(outcome["sources_correct"])
    return {kind: _BASE[kind]} | (_bonus(outcome, sourced, 0.6) if kind == "right" else _credits(outcome, sourced))


def art_e(outcome: Outcome, score: float) -> dict[str, float]:
    """Compute ART-E's reward, as published."""
    kind = verdict(outcome, score)
    sourced = bool(outcome["cites_source"])
    base = _BASE[kind]
    if kind == "malformed":
        base = _UNKNOWN_TOOL if outcome["unknown_tool"] else _BAD_ARGUMENTS
    return {kind: base} | (_bonus(outcome, sourced, 0.3) if kind == "right" else _credits(outcome, sourced))


def sources_only(outcome: Outcome, score: float) -> dict[str, float]:
    """Compute ART-E's reward without a judge: the score is ignored."""
    return art_e(outcome, 1.0 if outcome["cites_source"] else 0.0)


REWARDS: Mapping[str, Reward] = {"default": default, "art_e": art_e, "sources_only": sources_only}


def _bonus(outcome: Outcome, sourced: bool, for_sources: float) -> dict[str, float]:
    """Return what a right answer earns beyond its base."""
    parts = {}
    if sourced:
        parts["sources_correct"] = for_sources
    if outcome["sources"]:
        parts["few_sources"] = 0.1 / len(outcome["sources"])
    # `turns` can exceed `max_turns`, because one turn can hold several calls.
    parts["few_turns"] = 0.1 * max(0.0, 1 - outcome["turns"] / outcome["max_turns"])
    return parts


def _credits(outcome: Outcome, sourced: bool) -> dict[str, float]:
    """Return what any other rollout earns for its progress."""
    earned = {
        "found_source": outcome["found_source"],
        "read_source": outcome["read_source"],
        "no_invalid_read": not outcome["read_invalid"],
        "sources_correct": sourced,
    }
    return {name: 0.1 for name, is_earned in earned.items() if is_earned}
