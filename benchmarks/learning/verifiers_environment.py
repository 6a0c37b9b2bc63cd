"""Train in a third-party environment of the package `verifiers` through the whole service, and report its rewards.

    pip install sophistry-bench-sprint    # and the extra `verifiers`: docs/install.md#extras
    python -m benchmarks.learning.verifiers_environment [--iterations 5]

`sophistry-bench-sprint` (PyPI) asks for an argument with claims and quotations, and scores its form with code. The tiny
base model cannot do this; a weight on one of the environment's own length metrics makes its rollouts differ. This tests
the integration.
"""

import argparse
import json

from benchmarks.learning.mcp_environment import recorded_run

MODULE = "sophistry_bench_sprint"
WEIGHTS = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    config = {"env": MODULE, "args": {"passage_chars": 400, "weights": WEIGHTS}}
    settings = {"LEARNLOOP_ENVIRONMENT_MODULES": MODULE}
    print(json.dumps(recorded_run({"name": "verifiers", "config": config}, arguments.iterations, settings), indent=2))


if __name__ == "__main__":
    main()
