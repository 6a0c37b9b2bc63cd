"""Measure what a real base model learns from mail through the whole service, by arm and seed.

    python -m benchmarks.learning.real_model --base-model MODEL --emails mail --seeds 0 1 2

Arms: the prompted base model, after a warm start on conversations of the environment's oracle, after the warm start and
GRPO, and after GRPO alone. Each arm's last checkpoint answers all test questions through `POST /evaluations`, greedily
and sampled. What is not given is left to the service's defaults. Each result is a line of JSON; a table comes last.

`--workers 2` samples and trains in two processes, `1+1` samples in one and trains in another, and `1+1:1` does so with
rollouts that are one step old. With `--share 0.8` the checkpoints of each run are evaluated until one answers that
share; `saved_s` is when it was saved, and `grpo_s` how long after the demonstrations. A run then evaluates nothing
itself, so that its seconds are those of training.

`MODEL` is what `learnloop demo --base-model` takes. `--data-dir` names the data directory of `learnloop bases add` and
`learnloop data prepare`; the runs stay there.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks.learning.real_model.arms import ARMS, CHECK, GRPO, GRPO_ONLY, Settings, with_given
from benchmarks.learning.real_model.machine import described
from benchmarks.learning.real_model.measuring import Measurement, k3_by_precision, measure, sampler_against_trainer
from benchmarks.learning.real_model.report import table
from benchmarks.learning.real_model.workers import Workers
from learnloop_service.app.cli.demo.base import add_found, find_base
from learnloop_service.app.cli.demo.own_data import own_data, prepared_data
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment.json_type import Json

_GIVEN = (
    "demonstrations", "epochs", "warm_learning_rate", "iterations", "groups", "rollouts", "learning_rate",
    "max_completion_tokens", "concurrency", "questions",
)  # fmt: skip


def main() -> None:
    options = _options()
    with ExitStack() as stack:
        data_dir = options.data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="learnloop-")))
        try:
            what = _measurement(options, data_dir)
            failed = [text for text in options.workers if not _measure_all(what, text, options)]
        except Failure as failure:
            sys.exit(str(failure))
    if failed:
        sys.exit(f"arms failed with these workers: {failed}")


def _measurement(options: argparse.Namespace, data_dir: Path) -> Measurement:
    """Add the base model, prepare the mail, and return what is measured. Raises Failure."""
    settings = settings_with(data_dir=data_dir)
    base = find_base(options.base_model, data_dir, settings_with().data_dir)
    add_found(base, settings)
    emails = options.emails or ()
    data = prepared_data(options.inbox, data_dir) if options.inbox else own_data("email_search", emails, settings)
    chosen = Settings(
        inbox=data.name,
        questions=min(1_000, data.test_questions),
        evaluate=options.share is None,
    )
    if options.plan == "check":
        chosen = with_given(chosen, CHECK)
    chosen = with_given(chosen, {name: getattr(options, name) for name in _GIVEN})
    return Measurement(data_dir, base.name, chosen, options.device, options.transcripts, options.out, options.share)


def _measure_all(what: Measurement, text: str, options: argparse.Namespace) -> bool:
    """Print the figures with these workers, and return whether all arms succeeded."""
    clock, workers = time.monotonic(), Workers.named(text)

    def say(line: str) -> None:
        print(f"{time.monotonic() - clock:6.1f} s  {line}", file=sys.stderr, flush=True)

    results = []
    for result in measure(what, workers, options.arms, options.seeds, say):
        results.append(result)
        _print({"workers": text, **described(what.data_dir / "service.log"), **result})
    good = [result for result in results if "error" not in result]
    learned = [result for result in good if result["arm"] in (GRPO, GRPO_ONLY) and result["training"]["k3"]]
    if learned and what.device == "cuda":
        last = learned[-1]
        in_8_bits = sampler_against_trainer(what, workers, last["model"], last["seed"], say)
        _print({"workers": text, **k3_by_precision(last, in_8_bits)})
    Console(highlight=False, width=140).print(table(good, options.arms))
    return len(good) == len(results)


def _print(line: Json) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.real_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-model", required=True, metavar="MODEL")
    mail = parser.add_mutually_exclusive_group()
    mail.add_argument("--emails", action="append", metavar="PATH", help="mail for `learnloop data prepare`")
    mail.add_argument("--inbox", metavar="NAME", help="prepared mail of the data directory")
    parser.add_argument("--data-dir", type=Path, metavar="DIRECTORY", help="default: a temporary one")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", nargs="+", default=["1"], metavar="WORKERS[:STALENESS]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--share", type=float, help="of the test questions, whose time is measured")
    parser.add_argument("--transcripts", type=int, default=0, metavar="N", help="conversations of each arm and mode")
    parser.add_argument("--out", type=Path, default=Path("transcripts"), metavar="DIRECTORY", help="for --transcripts")
    parser.add_argument("--plan", choices=("whole", "check"), default="whole", help="check: a small one for a CPU")
    for name in _GIVEN:
        kind = float if "rate" in name else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="default: the service's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
