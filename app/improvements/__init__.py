"""Improvements: the cheapest change of an agent that is good enough, and what may be tried for it."""
