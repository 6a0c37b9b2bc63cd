"""Fuzz every operation of the OpenAPI file with schemathesis.

    python -m benchmarks.service.api_fuzz [--examples 200] [--seed 1] [--phases examples,coverage,fuzzing,stateful]

No request may cause a server error; each reply must have a documented status, content type and schema; requests without
a key must be refused. The service is real and has its own Postgres; its learn loops compute nothing. Exits with 1 on a
violation.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learnloop_service.app.http import openapi
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.main import create_app
from learnloop_service.training.types import IterationResult, RunConfig
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.keyed import OPERATOR_KEY
from tests.integration.app.served import served, settings_for

ALL_PHASES = "examples,coverage,fuzzing,stateful"
_MOST_ITERATIONS = 2
_CONFIG = """
[checks]
# 422 also tells of what no schema can say: of one field that does not go with another, or of a URL that leads inside.
positive_data_acceptance.expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]

# They need the engine, which is not started: 503 is documented and right there, and any other error is undocumented.
[[operations]]
include-path-regex = "^/(ask$|invoke$|models|v1/|sessions$|sessions/[^/]+/v1/)"
checks.not_a_server_error.enabled = false
checks.positive_data_acceptance.enabled = false
"""


class _ShortLoop(ScriptedLoop):
    """A learn loop that ends after a few iterations, however many were requested."""

    def __call__(self, config: RunConfig, *others: Any, **more: Any) -> AsyncGenerator[IterationResult, None]:
        short = replace(config, iterations=min(config.iterations, _MOST_ITERATIONS))
        return super().__call__(short, *others, **more)


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """The outcome of the requests. `violations` maps kinds of failure to the operations that show them."""

    requests: int
    operations: int
    seconds: float
    violations: dict[str, list[str]]
    output: str
    """The output of schemathesis: each failure with a request that shows it."""


async def fuzz(data_dir: Path, database_url: str | None, *, examples: int, seed: int, phases: str) -> Fuzzed:
    """Serve and fuzz. Raises RuntimeError if schemathesis could not work.

    `data_dir` is for the service and must be empty; without `database_url` the service starts its own Postgres.
    """
    unlimited = {"rate_per_s": 0, "failed_keys_per_minute": 0}  # schemathesis tries wrong keys on every operation
    settings = settings_for(
        data_dir, database_url, require_keys="always", operator_key=OPERATOR_KEY, log_level="error", **unlimited
    )
    with tempfile.TemporaryDirectory(prefix="api-fuzz-") as name:
        work = Path(name)
        work.joinpath("schemathesis.toml").write_text(_CONFIG)
        work.joinpath("api.json").write_text(json.dumps(openapi.described(create_app(settings).openapi())))
        async with served(settings, _ShortLoop()) as client:
            output = await _run(work, str(client.base_url), f"-n {examples} --seed {seed} --phases {phases}".split())
        try:
            report = json.loads(work.joinpath("report.json").read_text())
        except FileNotFoundError:
            raise RuntimeError(output) from None
    return _result(report, output)


async def _run(work: Path, url: str, options: list[str]) -> str:
    """Run schemathesis in `work`, where it can leave files, and return its output."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "--no-color", "--config-file", "schemathesis.toml"]
    command += ["run", "api.json", "--url", url, "-H", f"Authorization: Bearer {OPERATOR_KEY}"]
    command += ["--continue-on-failure", "--no-shrink", "--request-timeout", "60", "--generation-database", "none"]
    command += ["--suppress-health-check", "all", "--report", "json", "--report-json-path", "report.json", *options]
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    return printed.decode(errors="replace")


def _result(report: dict[str, Any], output: str) -> Fuzzed:
    violations = {
        f"{failure['code']} {failure['title']}": list(map(str, failure["operations"])) for failure in report["failures"]
    }
    violations |= {f"error {number}": [json.dumps(error)] for number, error in enumerate(report["errors"])}
    if not report["complete"]:
        violations["stopped"] = [str(report["stop_reason"])]
    return Fuzzed(
        report["test_cases"]["generated"], report["operations"]["tested"], report["running_time"], violations, output
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="of each operation and phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default=ALL_PHASES)
    options = parser.parse_args()
    configure_logs("error", "console")
    with tempfile.TemporaryDirectory(prefix="learnloop-fuzz-") as name:
        result = asyncio.run(
            fuzz(Path(name), None, examples=options.examples, seed=options.seed, phases=options.phases)
        )
    if result.violations:
        print(result.output)
    print(
        f"{result.requests} requests to {result.operations} operations in {result.seconds:.0f} s, seed {options.seed}"
    )
    print(f"violations: {json.dumps(result.violations, indent=2)}")
    sys.exit(bool(result.violations))


if __name__ == "__main__":
    main()
