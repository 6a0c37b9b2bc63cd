"""One attempt at a scenario: the agent, its model calls, its tools."""
