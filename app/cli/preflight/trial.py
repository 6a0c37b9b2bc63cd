"""A trial: one small iteration of a run on the whole service. It shows what time and cost to expect."""

from collections.abc import Callable, Mapping, Sequence

from ulid import ULID

from learnloop_service.app.cli.charts import duration
from learnloop_service.app.cli.client import Service, ServiceRefused
from learnloop_service.app.cli.watching import ENDED, follow
from learnloop_service.app.runs.expected_work import expected_rollouts
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.traits import Check, State

_GROUPS = 2
_EVALUATION = {"every": 1_000, "scenarios": 2, "samples": 1, "test_scenarios": 2}
"""Evaluation of a trial. It has two of each, because a run survives one failed rollout, but not the failure of all."""


WithDefaults = Callable[[bool], Mapping[str, Json]]
"""Returns the request with its defaults, given whether the run begins with demonstrations, which changes some."""


def trial(service: Service, with_defaults: WithDefaults, body: Mapping[str, Json]) -> list[Check]:
    """Run the trial, and delete it afterwards. `body` is the request as it was written.

    A warm start, also one that the service adds, is that of the run and not smaller.
    """
    try:
        run_id: str = service.start_run(_in_small(with_defaults(False), body))["run_id"]
    except ServiceRefused as error:
        return [Check("trial", State.FAILED, str(error), "correct the request")]
    try:
        run = follow(service, run_id, lambda _: None, until={*ENDED, "paused"})
        rollouts, iterations = list(service.trajectories(run_id, kind="train")), list(service.iterations(run_id))
    finally:
        _delete(service, run_id)
    if run["status"] != "completed":
        why = f"the run is {run['status']}: {run['error'] or run['wait_reason']}"
        return [Check("trial", State.FAILED, why, "see the log of the service")]
    estimated = estimates(with_defaults, run, iterations, len(rollouts))
    return [_rollouts(rollouts), _training(run), _judging(run), *estimated]


def _delete(service: Service, run_id: str) -> None:
    """Delete a run, even one that Ctrl-C interrupted."""
    if service.run(run_id)["status"] not in ENDED:
        service.cancel(run_id)
        follow(service, run_id, lambda _: None)
    service.delete_run(run_id)


def _in_small(whole: Mapping[str, Json], body: Mapping[str, Json]) -> dict[str, Json]:
    model = {name: value for name, value in (body.get("model") or {}).items() if name != "name"}
    return {
        **{name: value for name, value in body.items() if name not in ("webhooks", "budget")},
        "iterations": 1,
        "groups_per_iteration": min(_GROUPS, whole["groups_per_iteration"]),
        "evaluation": _EVALUATION,
        "model": {**model, "name": f"preflight-{str(ULID()).lower()}"},
    }


def _rollouts(rollouts: list[Json]) -> Check:
    failed = [rollout for rollout in rollouts if rollout["error"]]
    malformed = sum(rollout["outcome"].get("finish") == "malformed" for rollout in rollouts)
    summary = f"{counted(len(rollouts), 'rollout')}, {len(failed)} failed, {malformed} ended with a malformed tool call"
    if len(failed) == len(rollouts):
        return Check(
            "rollouts",
            State.FAILED,
            f"{summary}: {failed[0]['error']}" if failed else summary,
            "see the log of the service",
        )
    if malformed == len(rollouts):
        remedy = "choose a base model that can call tools, or train it on demonstrations first (docs/engine.md)"
        return Check("rollouts", State.WARNING, summary, remedy)
    return Check("rollouts", State.WARNING if failed else State.OK, summary)


def _training(run: Json) -> Check:
    last = run["iterations"][-1]
    if last["no_signal"] is None:
        return Check("training", State.OK, f"a step was trained, mean reward {last['rewards']['mean']:.3f}")
    remedy = "more rollouts per group, a higher temperature, or scenarios that the agent sometimes solves"
    return Check("training", State.WARNING, f"nothing to learn from in the trial: {last['no_signal']}", remedy)


def _judging(run: Json) -> Check:
    cost = run["cost"]
    tokens = cost["judge_prompt_tokens"] + cost["judge_completion_tokens"]
    name = run["request"]["judge"]["name"]
    if not tokens:
        return Check("judging", State.OK, f"{name}, without a model")
    return Check("judging", State.OK, f"{name}: {tokens:,} tokens, ${cost['judge_usd']:.4f}")


def estimates(with_defaults: WithDefaults, run: Json, iterations: Sequence[Json], trial_rollouts: int) -> list[Check]:
    """Estimate the run from a trial of `trial_rollouts` rollouts, whose warm start is that of the run.

    Larger batches take less time per rollout, so this is an upper bound.
    """
    supervised = [iteration for iteration in iterations if iteration["supervised"] is not None]
    whole, timing = with_defaults(bool(supervised)), iterations[-1]["timing"]
    size = expected_rollouts(whole, whole["iterations"])
    demonstrated = sum(iteration["timing"]["total_s"] for iteration in supervised)
    sampled = size.total * timing["rollout_s"] / trial_rollouts
    judged = size.total * timing["judge_s"] / trial_rollouts
    trained = size.training * timing["train_s"] / trial_rollouts
    total = demonstrated + sampled + judged + trained
    summary = f"at most about {duration(total)} for {counted(size.total, 'rollout')}"
    if supervised:
        summary += f", of which {duration(demonstrated)} for the warm start on demonstrations"
    checks = [Check("expected time", State.OK, summary)]
    if run["cost"]["judge_usd"]:
        dollars = run["cost"]["judge_usd"] * size.total / run["rollouts"]
        checks.append(Check("expected cost", State.OK, f"about ${dollars:.2f} for the judge"))
    return checks
