"""Measure what the guard of improvements refuses."""

from pathlib import Path

HONEST = [
    line.replace("\\n", "\n")
    for line in (Path(__file__).parent / "honest_prompts.txt").read_text(encoding="utf-8").splitlines()
]
