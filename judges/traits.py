"""What is known about a judge before building one.

The module of a judge's builder can define `TRAITS`. Without it nothing is assumed of its verdicts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgeTraits:
    """What a judge declares about its verdicts."""

    repeatable: bool = False
    """Whether they depend on nothing but the rollouts and the judge's code, so that they must be the same again."""
    checks: bool = False
    """Whether it computes without a model and without settings what is right in its environment's tasks, so that
    another judge can be compared with it at no cost."""
