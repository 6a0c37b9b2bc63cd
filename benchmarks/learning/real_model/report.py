"""The table of all arms, and their conversations as text."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from benchmarks.learning.real_model.held_out import MODES
from learnloop_service.environment.json_type import Json


def table(results: Sequence[Json], arms: Sequence[str]) -> Table:
    """Build a table with a row per arm, mode and seed, and one for the seeds' mean and standard deviation."""
    table = Table(box=None, pad_edge=False)
    for heading in ("arm", "mode", "seed", "success", "mean reward", "malformed", "called a tool", "seconds"):
        table.add_column(heading, no_wrap=True)
    for arm, mode in product(arms, MODES):
        of_arm = [result for result in results if result["arm"] == arm]
        figures = [result["held_out"][mode] for result in of_arm]
        for result, one in zip(of_arm, figures, strict=True):
            table.add_row(arm, mode, str(result["seed"]), *_cells(one), _seconds(result))
        if len(figures) > 1:
            table.add_row(arm, mode, "all", *_spread(figures), style="bold", end_section=True)
    return table


def _cells(one: Json) -> tuple[str, str, str, str]:
    success, reward = one["success"], one["reward"]
    return (
        f"{success['mean']:.1%} [{success['low']:.1%}, {success['high']:.1%}]",
        f"{reward['mean']:+.2f} [{reward['low']:+.2f}, {reward['high']:+.2f}]" if reward else "-",
        f"{one['malformed']:.1%}",
        f"{one['called_a_tool']:.1%}",
    )


def _spread(figures: Sequence[Json]) -> tuple[str, str, str, str]:
    successes = [one["success"]["mean"] for one in figures]
    rewards = [one["reward"]["mean"] for one in figures if one["reward"]]
    malformed, called = (f"{fmean(one[name] for one in figures):.1%}" for name in ("malformed", "called_a_tool"))
    reward = f"{fmean(rewards):+.2f} +- {stdev(rewards):.2f}" if len(rewards) > 1 else "-"
    return f"{fmean(successes):.1%} +- {stdev(successes):.1%}", reward, malformed, called


def _seconds(result: Json) -> str:
    return f"{result['training']['seconds']:.0f}" if result["training"] else "-"


def write_transcripts(directory: Path, arm: str, seed: int, read: Sequence[Mapping[str, Json]]) -> None:
    """Write an arm's conversations to `ARM-SEED.md`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    text = "\n".join(transcript(conversation) for conversation in read)
    (directory / f"{arm}-{seed}.md").write_text(f"# {arm}, seed {seed}\n\n{text}", encoding="utf-8")


def transcript(conversation: Mapping[str, Json]) -> str:
    """Return a conversation as text: the question, what was said and called, and how it was judged."""
    reference = conversation["scenario"].get("reference", {})
    reward = "none" if conversation["reward"] is None else f"{conversation['reward']:+.2f}"
    lines = [
        f"## {conversation['scenario_id']} ({conversation['mode']}): "
        f"{'right' if conversation['success'] else 'wrong'}, reward {reward}",
        f"expected: {reference.get('answer', '-')} from {', '.join(reference.get('source_ids', ())) or '-'}",
        f"finish: {conversation['outcome']['finish'] if conversation['outcome'] else conversation['error']}",
    ]
    for message in conversation["messages"]:
        calls = [
            f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()
        ]
        content = message.get("content")
        text = (
            content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
        )
        lines.append(f"\n[{message['role']}] {text}".rstrip())
        lines += [f"  -> {call}" for call in calls]
    return "\n".join(lines) + "\n"
