"""Twenty tasks of operators, each with a fixed policy that reads nothing but the answers of tools.

A policy fails if an answer lacks what it needs. Whether its task is done is looked up in the service's API.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.agents.operator_stage import SMALL, OperatorStage
from benchmarks.scripted.worlds import TARGET
from learnloop_service.environment.json_type import Json


class Asks(Protocol):
    """Calls a tool, and returns the document of the whole answer."""

    async def __call__(self, tool: str, /, **arguments: Json) -> Json: ...


Policy = Callable[[Asks], Awaitable[Json]]
Check = Callable[[OperatorStage, Json, int], object]
"""Returns whether the task is done, from what the policy returned and the number of runs before."""


@dataclass(frozen=True)
class OperatorTask:
    """One task: what a person would say, how it is done, and how to see that it is done."""

    says: str
    policy: Policy
    is_done: Check


TASKS: list[OperatorTask] = []


def _task(says: str, is_done: Check) -> Callable[[Policy], Policy]:
    def add(policy: Policy) -> Policy:
        TASKS.append(OperatorTask(says, policy, is_done))
        return policy

    return add


async def _named(ask: Asks, name: str) -> str:
    """Return the id of the run with that name."""
    rows = (await ask("list", kind="runs", search=name))["items"]
    [id] = [row["run_id"] for row in rows if row["name"] == name]
    return str(id)


async def _ended(ask: Asks, kind: str, id: str) -> Json:
    """Watch until it has ended."""
    state: Json = {"status": "queued", "after": 0}
    while state["status"] in ("queued", "running"):
        state = await ask("watch", kind=kind, id=id, after=state["after"], seconds=60)
    return state


@_task(
    "Why did the run `nightly` not learn as it should? Start the right fork.",
    lambda stage, _, before: (
        stage.count() == before + 1
        and stage.newest()["parent"]["run_id"] == stage.runs["nightly"]
        and stage.newest()["request"]["learning_rate"] == 1e-5
    ),
)
async def fork_by_the_diagnosis(ask: Asks) -> Json:
    run_id = await _named(ask, "nightly")
    diagnosis = await ask("diagnose_run", run_id=run_id)
    [cause] = [row for row in diagnosis["diagnoses"] if row["cause"] == diagnosis["cause"]]
    fork = await ask("fork_run", run_id=run_id, **cause["remedy"]["request"])
    return (await _ended(ask, "runs", fork["run_id"]))["verdict"]


@_task(
    "Which is better on held-out tasks, `nightly` or `stuck`, and is that shown?",
    lambda stage, said, _: said == ("nightly", True),
)
async def compare(ask: Asks) -> Json:
    runs = {name: await _named(ask, name) for name in ("nightly", "stuck")}
    compared = await ask("compare_runs", run_id=runs["nightly"], other=runs["stuck"])
    [held_out] = [row for row in compared["held_out"] if (row["split"], row["mode"]) == ("validation", "sampled")]
    better = "nightly" if held_out["run_better"] > held_out["other_better"] else "stuck"
    return better, held_out["difference"]["is_shown"]


@_task(
    "Which checkpoint of `weekly` should users get, and prove it. Promote it as `live`.",
    lambda stage, said, _: (
        said["ok"]
        and said["difference_count"] == 0
        and [(row["name"], row["step"]) for row in stage.call("GET", "/promotions")["items"]]
        == [("learnloop/live", stage.run(stage.runs["weekly"])["best_checkpoint"]["step"])]
    ),
)
async def promote_the_best(ask: Asks) -> Json:
    run = await ask("show", kind="runs", id=await _named(ask, "weekly"))
    proof = await ask("verify_run", run_id=run["run_id"])
    if run["verdict"]["state"] == "learned" and proof["ok"]:
        model, step = run["model"], run["best_checkpoint"]["step"]
        await ask("promote_checkpoint", project=model["project"], name=model["name"], step=step, **{"as": "live"})
    return proof


def _stays_in_the_budget(stage: OperatorStage, said: Json, before: int) -> bool:
    run = stage.newest()
    stage.call("POST", f"/runs/{run['run_id']}/cancel")
    is_limited = run["request"]["budget"]["max_usd"] == _DOLLARS and run["request"]["iterations"] == said["iterations"]
    return stage.count() == before + 1 and is_limited and _DOLLARS / 4 < said["usd"] <= _DOLLARS


_DOLLARS = 2.0


@_task(
    f"Train a model like that of `weekly` for as many iterations as ${_DOLLARS:.0f} allow, and never spend more.",
    _stays_in_the_budget,
)
async def stay_in_the_budget(ask: Asks) -> Json:
    run = await ask("show", kind="runs", id=await _named(ask, "weekly"))
    request = {**SMALL, "model": {"base_model": run["model"]["base_model"]}, "iterations": 1_000}
    while (usd := (await ask("plan_run", **request))["expected"]["usd"]) > _DOLLARS:
        request["iterations"] = int(request["iterations"] * min(0.9, _DOLLARS / usd))
    await ask("start_run", **request, budget={"max_usd": _DOLLARS})
    return {"usd": usd, "iterations": request["iterations"]}


@_task(
    "If another run like `weekly` with 500 iterations fits into an hour, start it; else start nothing.",
    lambda stage, said, before: said["seconds"] > 0 and stage.count() == before + (said["seconds"] <= 3600),
)
async def plan_first(ask: Asks) -> Json:
    request = (await ask("show", kind="runs", id=await _named(ask, "weekly")))["request"]
    request = {**SMALL, "model": {"base_model": request["model"]["base_model"]}, "iterations": 500}
    plan = await ask("plan_run", **request)
    if plan["expected"]["seconds"] <= 3600:
        started = await ask("start_run", **request)
        await ask("cancel", kind="runs", id=started["run_id"])
    return plan["expected"]


@_task(
    "What does the agent of `stuck` get wrong most often, and in which rollout can I see it?",
    lambda stage, said, _: (
        (first := stage.call("GET", "/failures", params={"run": stage.runs["stuck"]})["patterns"][0])
        and said == (first["sentence"], first["now"]["tasks"], first["rollouts"][0]["trajectory_id"])
    ),
)
async def name_the_failure(ask: Asks) -> Json:
    pattern = (await ask("failures", run=await _named(ask, "stuck")))["patterns"][0]
    return pattern["sentence"], pattern["now"]["tasks"], pattern["rollouts"][0]["trajectory_id"]


@_task(
    "Show me the worst rollout of `weekly` after its first iteration: what was asked, answered, and right?",
    lambda stage, said, _: (
        (rollout := stage.call("GET", f"/trajectories/{said['id']}"))
        and rollout["scenario"]["reference"]["answer"] == said["right"]
        and rollout["messages"][1]["content"] == said["asked"]
        and not rollout["success"]
        and rollout["iteration"] == 1
    ),
)
async def read_the_worst(ask: Asks) -> Json:
    worst = await ask("worst_rollouts", run_id=await _named(ask, "weekly"), iteration=1, limit=1)
    rollout = await ask("show", kind="trajectories", id=worst["worst"][0]["id"])
    [asked] = [message["content"] for message in rollout["messages"] if message["role"] == "user"]
    return {"id": rollout["id"], "asked": asked, "right": rollout["scenario"]["reference"]["answer"]}


@_task(
    "Is the judge of `nightly` noisy? Judge its held-out rollouts twice again if that costs less than a dollar.",
    lambda stage, said, _: (
        (job := stage.call("GET", f"/evaluations/{said['id']}"))["status"] == "completed"
        and job["report"]["rejudge"]["text"] == said["text"]
    ),
)
async def rejudge_it(ask: Asks) -> Json:
    request = {"run_id": await _named(ask, "nightly"), "repeats": 2, "kinds": ["evaluation"]}
    plan = await ask("rejudge", **request, dry_run=True)
    assert plan["verdicts"] > 0
    assert plan.get("cost", {}).get("usd", 0) < 1
    started = await ask("rejudge", **request)
    await _ended(ask, "evaluations", started["evaluation_id"])
    report = (await ask("show", kind="evaluations", id=started["evaluation_id"]))["report"]
    return {"id": started["evaluation_id"], "text": report["rejudge"]["text"]}


@_task(
    "Take a failed rollout of `weekly` after its first iteration: how often does it succeed if tried again?",
    lambda stage, said, _: (
        (job := stage.call("GET", f"/evaluations/{said['id']}"))["status"] == "completed"
        and abs(job["report"]["what_if"]["continuations"][0]["success"]["mean"] - said["success"]) < 1e-3
    ),
)
async def ask_what_if(ask: Asks) -> Json:
    worst = await ask("worst_rollouts", run_id=await _named(ask, "weekly"), iteration=1, success=False, limit=1)
    started = await ask("what_if", trajectory_id=worst["worst"][0]["id"], turn=1, samples=8)
    await _ended(ask, "evaluations", started["evaluation_id"])
    report = (await ask("show", kind="evaluations", id=started["evaluation_id"]))["report"]
    return {"id": started["evaluation_id"], "success": report["what_if"]["continuations"][0]["success"]["mean"]}


@_task(
    "Train grpo.0 once more with seed 5, and tell me the verdict and the price.",
    lambda stage, said, before: (
        stage.count() == before + 1
        and said["verdict"] == stage.newest()["verdict"]["text"]
        and abs(said["usd"] - stage.newest()["cost"]["total_usd"]) < 0.01
    ),
)
async def train_and_report(ask: Asks) -> Json:
    started = await ask("start_run", **SMALL, model={"base_model": "grpo.0"}, seed=5)
    state = await _ended(ask, "runs", started["run_id"])
    return {"verdict": state["verdict"], "usd": state["cost"]["total_usd"]}


@_task(
    "Start a run of grpo.1 with seed 6. (The connection broke after the first call.)",
    lambda stage, said, before: stage.count() == before + 1 and said[0] == said[1] == stage.newest()["run_id"],
)
async def start_once(ask: Asks) -> Json:
    request = {**SMALL, "iterations": 1, "model": {"base_model": "grpo.1"}, "seed": 6}
    return [(await ask("start_run", **request))["run_id"] for _ in range(2)]


@_task(
    "A run `endless` of nothing.0 wastes money: stop it if it shows no gain after two iterations.",
    lambda stage, said, _: stage.ended(stage.runs["endless"])["status"] == "cancelled" and said >= 2,
)
async def stop_the_waste(ask: Asks) -> Json:
    run_id = await _named(ask, "endless")
    state: Json = {"after": 0, "progress": {"iterations_done": 0}, "verdict": ""}
    while state["progress"]["iterations_done"] < 2:
        state = await ask("watch", kind="runs", id=run_id, after=state["after"], seconds=60)
    if not state["verdict"].startswith("Learned"):
        await ask("cancel", kind="runs", id=run_id)
    return state["progress"]["iterations_done"]


@_task(
    "Is the best checkpoint of `weekly` better than its base? Make a trial of at most 64 tasks.",
    lambda stage, said, _: (
        (job := stage.call("GET", f"/evaluations/{said['id']}"))["status"] == "completed"
        and job["report"]["gate"]["decision"] == said["decision"] == "better"
    ),
)
async def make_a_trial(ask: Asks) -> Json:
    started = await ask("evaluate", run_id=await _named(ask, "weekly"), scenarios=64, samples=1, gate={})
    await _ended(ask, "evaluations", started["evaluation_id"])
    report = (await ask("show", kind="evaluations", id=started["evaluation_id"]))["report"]
    return {"id": started["evaluation_id"], "decision": report["gate"]["decision"]}


@_task(
    f"Improve the agent prompt.0 to {TARGET:.0%} by the prompts p0 to p2, in at most 20 minutes.",
    lambda stage, said, _: (
        (job := stage.call("GET", f"/improvements/{said['id']}"))["status"] == said["status"]
        and job["sentence"] == said["sentence"]
        and job["request"]["budget"]["max_minutes"] == 20
    ),
)
async def improve_it(ask: Asks) -> Json:
    started = await ask(
        "start_improvement",
        model={"base_model": "prompt.0"},
        target=TARGET,
        prompts=["p0", "p1", "p2"],
        rungs=["prompt"],
        budget={"max_minutes": 20},
        validation=64,
        test=32,
    )
    state = await _ended(ask, "improvements", started["id"])
    shown = await ask("show", kind="improvements", id=started["id"])
    return {"id": started["id"], "status": state["status"], "sentence": shown["sentence"]}


@_task(
    "The improvement of nothing.0 waits for prompts: read how it fails, and propose one.",
    lambda stage, said, _: any(
        row["rung"] == "prompt" for row in stage.call("GET", f"/improvements/{said['id']}")["tried"]
    ),
)
async def propose_one(ask: Asks) -> Json:
    rows = (await ask("list", kind="improvements"))["items"]
    id = next(row["id"] for row in rows if row["status"] == "running")
    material = await ask("improvement_material", id=id)
    assert material["patterns"]
    why = f"Rollouts fail like this: {material['patterns'][0]['sentence']}."
    await ask("propose_prompt", id=id, parts={"system": "{original} Search twice. [prompt 4]"}, why=why)
    return {"id": id}


async def _release(ask: Asks) -> Json:
    run = await ask("show", kind="runs", id=await _named(ask, "weekly"))
    [live] = (await ask("list", kind="promotions"))["items"]
    names = dict(zip(("project", "name"), live["name"].split("/"), strict=True))
    step = next(step for step in (1, 2, 3) if step != live["step"])
    return await ask("start_release", **names, model=run["model"]["name"], step=step, skip_trial=True)


@_task(
    "Give another checkpoint of `weekly` a share of the users of `live`, and take it back: they complain.",
    lambda stage, said, _: stage.call("GET", f"/releases/{said}")["state"] == "rolled_back",
)
async def release_and_roll_back(ask: Asks) -> Json:
    release = await _release(ask)
    await ask("roll_back_release", release_id=release["release_id"])
    return release["release_id"]


@_task(
    "Release another checkpoint of `weekly` to `live`, and promote it now.",
    lambda stage, said, _: (
        stage.call("GET", f"/releases/{said['id']}")["state"] in ("promoted", "confirmed")
        and stage.call("GET", "/promotions")["items"][0]["step"] == said["step"]
    ),
)
async def release_and_promote(ask: Asks) -> Json:
    id = (await _release(ask))["release_id"]
    release = await ask("show", kind="releases", id=id)
    if release["state"] == "running":
        await ask("promote_release", release_id=id)
    return {"id": id, "step": int(release["candidate"].rpartition("@")[2])}


@_task(
    "Go on from the best checkpoint of `weekly` for one iteration. Is the result better than before?",
    lambda stage, said, before: (
        stage.count() == before + 1
        and stage.newest()["parent"]["run_id"] == stage.runs["weekly"]
        and said in (True, False)
    ),
)
async def go_on(ask: Asks) -> Json:
    run = await ask("show", kind="runs", id=await _named(ask, "weekly"))
    step = run["best_checkpoint"]["step"]
    fork = await ask("fork_run", run_id=run["run_id"], checkpoint=step, iterations=1, seed=11)
    await _ended(ask, "runs", fork["run_id"])
    compared = await ask("compare_runs", run_id=fork["run_id"], other=run["run_id"])
    return next(row for row in compared["held_out"] if row["mode"] == "sampled")["difference"]["is_shown"]


@_task(
    "Can `answrs` be trained here? If the name is wrong, say what there is, and what its run would lack.",
    lambda stage, said, before: "email_search" in said["names"] and said["why"] and stage.count() == before,
)
async def check_an_environment(ask: Asks) -> Json:
    names = [row["name"] for row in (await ask("list", kind="environments"))["items"]]
    assert "answrs" not in names
    wrong: Any = None
    try:
        await ask("plan_run", environment={"name": "answers", "config": {}})
    except Exception as error:
        wrong = str(error)
    return {"names": names, "why": wrong}


@_task(
    "How often are held-out tasks evaluated in a run unless I say so? Plan weekly's with every second iteration.",
    lambda stage, said, before: said["described"] and said["fewer"] < said["all"] and stage.count() == before,
)
async def look_a_field_up(ask: Asks) -> Json:
    described = await ask("fields", tool="plan_run", path="evaluation")
    request = {**SMALL, "iterations": 4, "model": {"base_model": "grpo.1"}}
    plans = [
        (await ask("plan_run", **{**request, "evaluation": {**SMALL["evaluation"], "every": every}}))["expected"]
        for every in (1, 2)
    ]
    made = [plan["rollouts"]["evaluations"] for plan in plans]
    return {"described": described["every"]["description"], "all": made[0], "fewer": made[1]}
