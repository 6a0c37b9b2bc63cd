"""Runs the arms of all seeds in one service, and the comparison of sampler and trainer in 8 bits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.learning.real_model.arms import GRPO_ONLY, PROMPTED, Settings, request
from benchmarks.learning.real_model.held_out import answers, time_to_share
from benchmarks.learning.real_model.report import write_transcripts
from benchmarks.learning.real_model.training import train
from benchmarks.learning.real_model.workers import Workers
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.json_type import Json

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured, and where."""

    data_dir: Path
    """The data directory with the base model and the prepared mail."""
    base_model: str
    settings: Settings
    device: str
    transcripts: int = 0
    """Number of conversations of each arm, seed and mode that are written for reading."""
    out: Path | None = None
    """Directory for the conversations."""
    share: float | None = None
    """Share of the test questions: checkpoints are evaluated until one answers it."""

    def service(self, workers: Workers, *flags: str) -> AbstractContextManager[Service]:
        """Start a service whose engine has these workers and flags."""
        arguments = " ".join(("--device", self.device, workers.flags, *flags))
        return own_service(self.data_dir, waiting=lambda _: None, variables={"LEARNLOOP_ENGINE_ARGS": arguments})


def measure(what: Measurement, workers: Workers, arms: Sequence[str], seeds: Sequence[int], say: Say) -> Iterator[Json]:
    """Yield the figures of each arm and seed. An arm that failed has only its `error`."""
    with what.service(workers) as service:
        for seed in seeds:
            for arm in arms:
                say(f"seed {seed}, {arm}")
                try:
                    yield {"arm": arm, "seed": seed, **_arm(service, what, workers, arm, seed, say)}
                except RuntimeError as error:
                    yield {"arm": arm, "seed": seed, "error": str(error)}


def _arm(service: Service, what: Measurement, workers: Workers, arm: str, seed: int, say: Say) -> dict[str, Json]:
    trained, model = None, what.base_model
    if arm != PROMPTED:
        learn_loop = request(arm, what.base_model, what.settings, seed, workers.staleness)
        trained = train(service, learn_loop, say)
        model = f"{trained['model']}@{trained['step']}"
    figures, read = answers(service, model, what.settings, seed, what.transcripts)
    if what.out is not None and read:
        write_transcripts(what.out, arm, seed, read)
    result: dict[str, Json] = {"training": trained, "model": model, "held_out": figures}
    if what.share is not None and trained is not None:
        result["time_to_share"] = list(time_to_share(service, trained, what.settings, seed, what.share))
    return result


def sampler_against_trainer(what: Measurement, workers: Workers, model: str, seed: int, say: Say) -> Json:
    """Train a model for one iteration with its engine's base in 8 bits, and return the k3 estimate or the error."""
    say(f"{model} in 8 bits")
    once = replace(what.settings, iterations=1, evaluate=False)
    with what.service(workers, "--training-weights", "fp8") as service:
        try:
            return train(service, request(GRPO_ONLY, model, once, seed, workers.staleness), say)["k3"]
        except RuntimeError as error:
            return {"error": str(error)}


def k3_by_precision(arm_figures: Mapping[str, Json], in_8_bits: Json) -> Json:
    """Return the k3 estimates of an arm's run, and of the one iteration in 8 bits after it."""
    return {
        "arm": arm_figures["arm"],
        "seed": arm_figures["seed"],
        "k3": {"exact": arm_figures["training"]["k3"], "fp8": in_8_bits},
    }
