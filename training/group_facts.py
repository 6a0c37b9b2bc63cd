"""What is counted of a group: diagnoses are made from it, and later scenarios are drawn by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Counts of one group's rollouts by symptom, and what their rewards are made of."""

    rollouts: int
    infrastructure: int = 0
    """Rollouts that failed because a server or the network failed, or because they took too long."""
    truncated: int = 0
    """Rollouts with a reply of the maximum length."""
    malformed: int = 0
    """Rollouts that ended with a malformed reply."""
    truncated_malformed: int = 0
    """Malformed rollouts whose replies were truncated."""
    agent_errors: int = 0
    """Rollouts in which an agent with a loop of its own raised an error or did nothing that can be judged."""
    out_of_turns: int = 0
    """Rollouts that ended because their turns were used up."""
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that were answered by an error, where the environment counts them."""
    unscored: int = 0
    """Rollouts that finished and that the judge gave no score."""
    scored: int = 0
    replies: int = 0
    """Number of different last replies among the scored rollouts."""
    scores: int = 0
    """Number of different scores."""
    successes: int = 0
    """Scored rollouts that count as a success by the judge's scores."""
    checked: int = 0
    """Scored rollouts that the environment's own check scored as well."""
    true_successes: int = 0
    """Checked rollouts that are a success by that check."""
    pairs: int = 0
    """Pairs of checked rollouts of which one is a true success and the other is not."""
    misordered: float = 0.0
    """Pairs in which the judge's score is not higher for the true success; equal scores count by half."""
    variance: float = 0.0
    """Variance of the rewards."""
    dominance: float = 0.0
    """Covariance of the rewards with that part of them which explains most."""
    weight: float = 0.0
    """Sum over the rollouts of abs(advantage) times the number of sampled tokens: the group's share of the gradient."""
    scenario: str = ""
    """Id of the scenario; empty in facts of earlier versions, and for the rollouts of several."""
    lowest: float = 0.0
    """Lowest reward."""
    highest: float = 0.0
    spread: float = 0.0
    """Standard deviation of the rewards."""
    represents: float = 1.0
    """How much its rollouts count in figures (training/inclusion.py); 0 for those that replace others."""
