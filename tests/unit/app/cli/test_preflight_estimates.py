"""What preflight expects of a run, by what its trial took."""

from learnloop_service.app.cli.preflight.trial import estimates
from learnloop_service.environment.json_type import Json
from learnloop_service.training.bases.defaults import BaseModelFacts, defaults_of

RUN: Json = {"cost": {"judge_usd": 0.0}, "rollouts": 16}
EVALUATION = {"every": 4, "scenarios": 10, "samples": 1, "test_scenarios": 10}


def _iteration(seconds: float, supervised: Json = None) -> Json:
    timing = {"rollout_s": 8.0, "judge_s": 0.0, "train_s": 8.0, "total_s": seconds}
    return {"timing": timing, "supervised": supervised}


def _with_defaults(is_demonstrated: bool) -> dict[str, Json]:
    defaults = defaults_of(BaseModelFacts("qwen", 494_032_768), 2, 8, after_demonstrations=is_demonstrated)
    whole = {"groups_per_iteration": 2, "rollouts_per_group": 8, "evaluation": EVALUATION}
    return whole | {"iterations": int(defaults["iterations"].value)}


def test_the_warm_start_that_the_service_added_is_part_of_the_time() -> None:
    demonstrated = [_iteration(600.0, {"demonstrations": 432}), _iteration(540.0, {"demonstrations": 432})]
    [with_it] = estimates(_with_defaults, RUN, [*demonstrated, _iteration(16.0)], 16)
    [without] = estimates(_with_defaults, RUN, [_iteration(16.0)], 16)
    # 30 iterations after demonstrations: 480 rollouts to train on and 220 to evaluate, each 0.5 s, and training as long
    assert with_it.found == "at most about 28:50 for 700 rollouts, of which 19:00 for the warm start on demonstrations"
    assert _with_defaults(False)["iterations"] != 30
    assert "warm start" not in without.found
