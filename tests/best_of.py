"""The best checkpoint of saved iterations, as a database gives it back."""

from collections.abc import Sequence

from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation
from learnloop_service.training.scoring import successes
from learnloop_service.training.types import IterationResult


def best_of(results: Sequence[IterationResult]) -> BestCheckpoint:
    """The best checkpoint after the last of the results, with the highest figures among all of them."""
    evaluations = [evaluation for result in results for evaluation in result.evaluations]
    validations = [
        evaluation for evaluation in evaluations if (evaluation.split, evaluation.mode) == ("validation", "sampled")
    ]
    if not validations:
        return BestCheckpoint(results[-1].best_step)
    top = max(validations, key=lambda validation: (validation.success, validation.mean_reward))
    highest = Validation(top.success, top.mean_reward, successes(top.rollouts))
    return BestCheckpoint(results[-1].best_step, highest)
