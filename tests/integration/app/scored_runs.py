"""Runs whose replies are scored by other checkpoints."""

RUN = {
    "iterations": 1,
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 0, "samples": 1},
    "learning_rate": 0.003,
    "seed": 3,
}
