"""Improve the included base model, and see whether it stops at the cheapest step that is good enough.

    python -m benchmarks.learning.improve_tiny [--seeds 0 1 2]

Two prompts, which this base gains nothing from, and imitation of its own best rollouts before GRPO, with a target of
85%; then GRPO alone. The improvement must refuse both prompts, stop at imitation, and solve at least 80% of the test
tasks greedily; GRPO alone must take at least 1.5 times as many minutes as imitation. Measuring the agent as it is, the
pilot and the test tasks cost the same in both, so the ratio of all costs is smaller. It is printed as well.
"""

import argparse
import json
from collections.abc import Mapping, Sequence

from benchmarks import processes
from benchmarks.durability.harness import serving, workplace
from benchmarks.improvements import improved
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

_PROMPTS: Mapping[str, str] = {
    "careful": "{original}\nWork carefully: search with rare words, read the email before you answer, and cite it.",
    "short": "Find the answer in the mail of {inbox_address}. Today is {query_date}. Give the ids of your sources.",
}
_TARGET = 0.85
_LEAST_TESTED = 0.8
_LEAST_RATIO = 1.5


def brief(improvement: Json) -> dict[str, Json]:
    """Return what is printed of an improvement."""
    champion, price = improvement["tried"][improvement["champion"]], improvement["price"]
    return {
        "status": improvement["status"],
        "champion": champion["rung"],
        "test": None if champion["test"] is None else champion["test"]["mean"],
        "minutes_of_champion": champion["price"]["minutes"],
        "minutes": price["minutes"],
        "tokens": price["tokens"],
        "tried": [[row["rung"], row["state"], row["reason"], row["success"]] for row in improvement["tried"]],
        "sentence": improvement["sentence"],
    }


def measure(seed: int) -> dict[str, Json]:
    """Return the figures of one seed."""
    with workplace() as directory, serving(directory / "data", free_port()) as it:
        for name, text in _PROMPTS.items():
            it.client.call("POST", "/prompts", params={"name": name}, json={"parts": {"system": text}})
        request = {"seed": seed, "target": _TARGET, "imitation": {"sources": ["own"]}}
        whole = brief(improved([it.client], {**request, "prompts": list(_PROMPTS)}))
        alone = brief(improved([it.client], {**request, "rungs": ["grpo"]}))
    ratios = {name: round(alone[name] / whole[name], 2) for name in ("minutes_of_champion", "minutes", "tokens")}
    return {"seed": seed, "improvement": whole, "grpo_alone": alone, "alone_to_whole": ratios}


def faults(figures: Mapping[str, Json]) -> list[str]:
    """Return what is not as it must be."""
    whole = figures["improvement"]
    prompts = [state for rung, state, *_ in whole["tried"] if rung == "prompt"]
    must_be = {
        "stops at imitation": (whole["status"], whole["champion"]) == ("reached", "imitation"),
        "both prompts are refused": prompts == ["refused", "refused"],
        f"at least {_LEAST_TESTED:.0%} of the test tasks": (whole["test"] or 0.0) >= _LEAST_TESTED,
        f"GRPO alone takes {_LEAST_RATIO} times as long": (
            figures["alone_to_whole"]["minutes_of_champion"] >= _LEAST_RATIO
        ),
    }
    return [what for what, holds in must_be.items() if not holds]


def main(seeds: Sequence[int]) -> None:
    """Print the figures of each seed; fail if one of them is not as it must be."""
    wrong = []
    for seed in seeds:
        figures = {"machine": processes.machine(), **measure(seed)}
        figures["faults"] = faults(figures)
        print(json.dumps(figures, indent=2), flush=True)
        wrong += [f"seed {seed}: {fault}" for fault in figures["faults"]]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    main(parser.parse_args().seeds)
