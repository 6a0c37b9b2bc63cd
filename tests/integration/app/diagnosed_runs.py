"""Runs whose replies are malformed."""

from tests.fakes.scripted_chat import Reply

RUN = {
    "iterations": 3,
    "groups_per_iteration": 8,
    "rollouts_per_group": 2,
    "evaluation": {"every": 4, "scenarios": 1, "test_scenarios": 0, "samples": 1},
}
MALFORMED = Reply(content='I would search for "the invoice of last month" now')
