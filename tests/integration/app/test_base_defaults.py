"""Defaults that follow the base model: in the reply, on the run, in its stored request and in what is made from it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.environment.email_search.environment import questions_path
from learnloop_service.environment.email_search.inbox import Email, write_inbox
from learnloop_service.training.bases.report import BaseReport, FormatCount
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from learnloop_service.training.tuning import Tuning
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.app.served import run_with, served, settings_for

NOT_GIVEN = {
    *("iterations", "groups_per_iteration", "rollouts_per_group", "replace_groups", "learning_rate"),
    *("warmup_iterations", "concurrency"),
    *("evaluation.every", "evaluation.scenarios", "evaluation.samples", "evaluation.test_scenarios"),
}
OF_SIZED = {"evaluation.baseline_width", "checkpoints.keep_best", "checkpoints.keep_last", "checkpoints.keep_evaluated"}
"""What only bases whose size is known have a default for."""
SMALL = {"iterations": 1, "groups_per_iteration": 1, "rollouts_per_group": 2, "warm_start": None}


class TunedBackend(ScriptedBackend):
    """Trains what it is asked to, on a disk with this much room."""

    free = 10**12

    async def free_bytes(self) -> int:
        return self.free

    async def tuning(self, project: str, name: str) -> Tuning | None:
        models = [model for model in self.policies if (model.project, model.name) == (project, name)]
        return (models[0].tuning or Tuning()) if models else None


@pytest.fixture
async def client(tmp_path: Path, database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A service with the base model `other` besides the tiny one."""
    bases = {"other": make_tiny_model(tmp_path / "other")}
    examined = BaseReport((), tool_format="hermes", probe=(FormatCount("hermes", 32, 0, 0, {}),))
    BaseVerdicts(tmp_path / "data").keep(bases["other"], BaseVerdict(None, examined))
    settings = settings_for(tmp_path / "data", database_url, engine_base_models=bases)
    async with served(settings, ScriptedLoop(), TunedBackend()) as client:
        yield client


async def _accepted(client: httpx.AsyncClient, path: str = "/learn-loop", /, **body: Any) -> Any:
    reply = await client.post(path, json=body)
    assert reply.status_code == 202, reply.text
    return reply.json()


async def _refused(client: httpx.AsyncClient, **body: Any) -> tuple[list[Any], str]:
    reply = await client.post("/learn-loop", json=body)
    assert reply.status_code == 422, reply.text
    [error] = reply.json()["errors"]
    return error["loc"], error["msg"]


def _at(request: Any, path: str) -> Any:
    for name in path.split("."):
        request = request[name]
    return request


@pytest.mark.parametrize(("base", "iterations", "groups"), [("learnloop/tiny", 14, 8), ("other", 45, 16)])
async def test_what_is_not_given_follows_the_base(
    client: httpx.AsyncClient, base: str, iterations: int, groups: int
) -> None:
    accepted = await _accepted(client, model={"base_model": base, "name": "agent"}, warm_start=None)
    defaults = accepted["defaults"]
    not_given = NOT_GIVEN | (OF_SIZED if base == "other" else set())
    assert defaults.keys() == not_given
    assert (defaults["iterations"]["value"], defaults["groups_per_iteration"]["value"]) == (iterations, groups)
    assert defaults["replace_groups"]["value"] is (base == "other")
    rollouts = accepted["expected"]["rollouts"]
    assert rollouts["replacements"] == (rollouts["training"] if base == "other" else 0)
    assert all(default["reason"] for default in defaults.values())
    run = (await client.get(f"/runs/{accepted['run_id']}")).json()
    assert run["defaults"] == defaults
    assert run["progress"]["iterations_total"] == iterations
    assert {path: _at(run["request"], path) for path in not_given} == {
        path: defaults[path]["value"] for path in not_given
    }
    assert (run["request"]["checkpoints"] is None) is (base == "learnloop/tiny")
    assert run["request"]["evaluation"]["best"] == (None if base == "learnloop/tiny" else "highest")
    assert run["request"]["scenario_sampling"] == ("passes" if base == "learnloop/tiny" else "difficulty")
    assert run["warnings"] == accepted["warnings"] == []


async def test_what_is_given_wins_and_a_fork_repeats_it_all(client: httpx.AsyncClient) -> None:
    options = {**SMALL, "learning_rate": 1e-4, "evaluation": {"every": 3}}
    accepted = await _accepted(client, model={"base_model": "other", "name": "agent"}, **options)
    assert accepted["defaults"].keys() == {
        *("replace_groups", "warmup_iterations", "concurrency", *OF_SIZED),
        *("evaluation.scenarios", "evaluation.samples", "evaluation.test_scenarios"),
    }
    assert accepted["defaults"]["concurrency"]["value"] == 2
    parent = await run_with(client, accepted["run_id"], "completed")
    fork = await _accepted(client, f"/runs/{parent['run_id']}/fork")
    assert fork["defaults"] == {}
    request = (await client.get(f"/runs/{fork['run_id']}")).json()["request"]
    assert {**request, "model": None} == {**parent["request"], "model": None}


async def test_a_run_from_a_checkpoint_has_the_defaults_of_its_base(client: httpx.AsyncClient) -> None:
    first = await _accepted(client, model={"base_model": "other", "name": "agent"}, **SMALL)
    await run_with(client, first["run_id"], "completed")
    second = await _accepted(client, model={"base_model": "learnloop/agent@1", "name": "next"}, **SMALL)
    await run_with(client, second["run_id"], "completed")
    third = await _accepted(client, model={"base_model": "learnloop/next@1"})
    assert third["defaults"]["iterations"]["value"] == 45
    assert third["defaults"]["learning_rate"] == first["defaults"]["learning_rate"]


async def test_a_new_model_begins_with_demonstrations_of_the_environment(client: httpx.AsyncClient) -> None:
    accepted = await _accepted(client, model={"base_model": "other", "name": "agent"}, rollouts_per_group=2)
    defaults = accepted["defaults"]
    assert defaults["warm_start.demonstrations.oracle"]["value"] == 480
    assert "give up" in defaults["warm_start.demonstrations.oracle"]["reason"]
    assert defaults["iterations"]["value"] == 30
    run = await run_with(client, accepted["run_id"], "completed")
    start = run["request"]["warm_start"]
    assert (start["demonstrations"], start["learning_rate"]) == (
        {"oracle": 480},
        defaults["warm_start.learning_rate"]["value"],
    )
    assert run["request"]["first_scenario"] == 480
    assert run["progress"]["iterations_total"] == 32
    again = await _accepted(client, model={"base_model": "other", "name": "agent"})
    assert (again["defaults"].keys(), again["defaults"]["iterations"]["value"]) == (NOT_GIVEN | OF_SIZED, 45)


async def test_null_keeps_all_checkpoints(client: httpx.AsyncClient) -> None:
    accepted = await _accepted(client, model={"base_model": "other", "name": "agent"}, checkpoints=None, **SMALL)
    assert not [field for field in accepted["defaults"] if field.startswith("checkpoints.")]
    assert (await run_with(client, accepted["run_id"], "completed"))["request"]["checkpoints"] is None


async def test_demonstrations_have_a_learning_rate_of_their_own(client: httpx.AsyncClient) -> None:
    warm = {"warm_start": {"demonstrations": {"oracle": 2}}}
    for base in ("learnloop/tiny", "other"):
        accepted = await _accepted(client, model={"base_model": base}, **warm)
        run = (await client.get(f"/runs/{accepted['run_id']}")).json()
        rate = accepted["defaults"]["warm_start.learning_rate"]["value"]
        assert run["request"]["warm_start"]["learning_rate"] == rate == 5e-4
    options = {"warm_start": {"demonstrations": {"oracle": 2}, "learning_rate": 1e-3}}
    assert "warm_start.learning_rate" not in (await _accepted(client, **options))["defaults"]


async def test_no_more_scenarios_are_evaluated_than_there_are(tmp_path: Path, database_url: str) -> None:
    bases = {"other": make_tiny_model(tmp_path / "other")}
    examined = BaseReport((), tool_format="hermes", probe=(FormatCount("hermes", 32, 0, 0, {}),))
    BaseVerdicts(tmp_path / "data").keep(bases["other"], BaseVerdict(None, examined))
    settings = settings_for(tmp_path / "data", database_url, engine_base_models=bases)
    inboxes = tmp_path / "data" / "inboxes"
    inboxes.mkdir(parents=True)
    mail = Email("m1", "<1@x.example>", "Mara <mara@x.example>", ("jo@x.example",), None, "Venue", "It is Basel.")
    write_inbox(inboxes / "mine.sqlite", [mail])
    splits = ("train", "validation", "test", "test")
    questions = [{"question": f"Where {n}?", "answer": "Basel", "source_ids": ["m1"]} for n in range(len(splits))]
    lines = [json.dumps({**question, "split": split}) for question, split in zip(questions, splits, strict=True)]
    questions_path(inboxes / "mine.sqlite").write_text("\n".join(lines))
    async with served(settings, ScriptedLoop()) as client:
        environment = {"name": "email_search", "config": {"inbox": "mine"}}
        defaults = (await _accepted(client, environment=environment, model={"base_model": "other"}))["defaults"]
        tiny = (await _accepted(client, environment=environment))["defaults"]
        shared = await _accepted(
            client, environment=environment, model={"base_model": "other"}, warm_start={"demonstrations": {"oracle": 2}}
        )
        assert [warning for warning in shared["warnings"] if "(1 in all): rollouts attempt the same ones." in warning]
    assert (defaults["evaluation.scenarios"]["value"], defaults["evaluation.test_scenarios"]["value"]) == (1, 2)
    assert defaults["evaluation.test_scenarios"]["reason"] == "The environment has no more test scenarios."
    assert (tiny["evaluation.scenarios"]["value"], tiny["evaluation.test_scenarios"]["value"]) == (1, 2)


@pytest.mark.parametrize(
    ("base", "rate", "warned"),
    [("other", 7e-3, True), ("other", 1e-3, False), ("other", 1e-5, True), ("learnloop/tiny", 7e-3, False)],
)
async def test_a_rate_far_from_the_default_is_warned_about(
    client: httpx.AsyncClient, base: str, rate: float, warned: bool
) -> None:
    accepted = await _accepted(client, model={"base_model": base}, learning_rate=rate, iterations=1)
    run = (await client.get(f"/runs/{accepted['run_id']}")).json()
    much = "above" if rate > 1e-3 else "below"
    warning = f"The learning rate {rate:g} is far {much} 0.0007, which suits {base}."
    assert (warning in accepted["warnings"], warning in run["warnings"]) == (warned, warned)


async def test_the_part_that_is_trained_reaches_the_backend_and_stays(client: httpx.AsyncClient) -> None:
    lora = {"mode": "lora", "rank": 4, "target_modules": ["q_proj", "v_proj"]}
    model = {"base_model": "other", "name": "agent", "tuning": lora}
    accepted = await _accepted(client, model=model, **SMALL)
    run = await run_with(client, accepted["run_id"], "completed")
    assert run["request"]["model"]["tuning"] == {**lora, "alpha": 16}
    assert "by a LoRA" in accepted["defaults"]["learning_rate"]["reason"]
    # the same again, in another order, or not said
    again = {**lora, "alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    for tuning in (again, None):
        more = await _accepted(client, model={"base_model": "learnloop/agent@1", "tuning": tuning}, **SMALL)
        assert "by a LoRA" in more["defaults"]["learning_rate"]["reason"]
    complaint = "The model learnloop/agent is trained by a LoRA of rank 4 and alpha 16 on q_proj, v_proj."
    for other in ({"mode": "full"}, {**lora, "rank": 8}):
        for changed in ({**model, "tuning": other}, {"base_model": "learnloop/agent@1", "tuning": other}):
            location, message = await _refused(client, model=changed)
            assert (location, complaint in message) == (["body", "model", "tuning"], True)


@pytest.mark.parametrize(
    ("tuning", "place", "said"),
    [
        ({"mode": "half"}, ["mode"], "lora"),
        ({"mode": "lora", "rank": 0}, ["rank"], "1"),
        ({"mode": "full", "rank": 8}, [], "describe an adapter"),
        ({"mode": "lora", "ranks": 8}, ["ranks"], "Did you mean rank?"),
        ({"mode": "lora", "target_modules": ["q_proj", "query"]}, ["target_modules"], "no linear layer named query"),
        ({"mode": "lora", "target_modules": ["embed_tokens"]}, ["target_modules"], "are one matrix"),
        ({"mode": "lora", "target_modules": ["lm_head"]}, ["target_modules"], "are one matrix"),
    ],
)
async def test_a_bad_tuning_is_refused(
    client: httpx.AsyncClient, tuning: dict[str, Any], place: list[str], said: str
) -> None:
    location, message = await _refused(client, model={"base_model": "other", "tuning": tuning})
    assert (location, said in message) == (["body", "model", "tuning", *place], True)


async def test_a_switch_that_the_template_does_not_have_is_refused(client: httpx.AsyncClient) -> None:
    for base in ("other", "learnloop/tiny"):
        location, message = await _refused(client, model={"base_model": base, "enable_thinking": False})
        assert (location, "has no switch" in message) == (["body", "model", "enable_thinking"], True)


async def test_other_backends_refuse_a_tuning(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    settings = settings_for(tmp_path, database_url)
    async with served(settings, ScriptedLoop()) as client:
        model = {"base_model": "OpenPipe/Qwen3-14B", "tuning": {"mode": "full"}}
        location, message = await _refused(client, backend="serverless", model=model)
    assert (location, "serverless decides itself" in message) == (["body", "model", "tuning"], True)


async def test_a_run_that_does_not_fit_on_the_engines_disk_is_refused_with_the_number(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"base_model": "other"}  # each run has a model of its own
    few = (await _accepted(client, model=model))["expected"]["disk_bytes"]
    everything = (await _accepted(client, model=model, checkpoints=None))["expected"]["disk_bytes"]
    assert 0 < few < everything
    monkeypatch.setattr(TunedBackend, "free", 1_000_000)
    where, why = await _refused(client, model=model)
    assert where == ["body", "checkpoints"]
    assert re.match(r"The run needs about \d\.\d GB on the engine's disk \(11 checkpoints of 0\.\d\d GB and ", why)
    assert "0.0 GB are free" in why
    assert "keep fewer checkpoints" in why
    assert (await _accepted(client, model={"base_model": "learnloop/tiny"}))["expected"]["disk_bytes"] is None
