"""The largest values that a request may have (app/schemas/run_request.py), for remedies that raise a setting."""

LEARNING_RATE = 0.1
COMPLETION_TOKENS = 32_768
TIMEOUT_S = 86_400
TURNS = 100
GROUPS = 256
ROLLOUTS = 256
