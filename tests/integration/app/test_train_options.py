"""How a run takes its GRPO steps: what a request may say, what reaches the backend, and what is refused."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from learnloop_service.app.schemas.train_options import TrainOptionsChoice
from learnloop_service.training.backends.train_options import AS_LOSS_FN, AS_PPO, EMBEDDED, LOCAL, SERVERLESS, as_sent
from learnloop_service.training.engine.trainer.grpo_loss import BadOptions, TrainOptions
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.integration.app.served import run_with, served, settings_for

GOOD = {
    "loss": "ppo",
    "epsilon": 0.1,
    "epsilon_high": 0.3,
    "importance_sampling_level": "sequence",
    "mask_prob_ratio": True,
    "min_probability": 0.01,
    "max_negative_advantage_importance_sampling_weight": 2.0,
    "truncated_importance_sampling": 2.0,
    "precalculate_logprobs": True,
    "kl_penalty_coef": 0.05,
    "kimi_k2_tau": 0.1,
    "advantage_balance": -0.5,
    "scale_rewards": False,
    "least_spread": 0.05,
    "token_weighting": "trajectory",
    "max_grad_norm": 0.5,
    "max_kl": 0.02,
    "max_rollout_kl": 0.5,
}
BAD = {
    "loss": "grpo",
    "epsilon": -0.1,
    "epsilon_high": -1,
    "importance_sampling_level": "word",
    "mask_prob_ratio": 2,
    "min_probability": 1,
    "max_negative_advantage_importance_sampling_weight": 0,
    "truncated_importance_sampling": 0,
    "precalculate_logprobs": "perhaps",
    "kl_penalty_coef": -1,
    "kimi_k2_tau": 0,
    "advantage_balance": 1.5,
    "scale_rewards": "some",
    "least_spread": -1,
    "token_weighting": "word",
    "max_grad_norm": 0,
    "max_kl": 0,
    "max_rollout_kl": 0,
}


def test_every_option_that_the_engine_takes_can_be_asked_for() -> None:
    engine = set(TrainOptions.model_fields) - {"learning_rate", "ppo"} | {"loss"}
    assert set(TrainOptionsChoice.model_fields) == engine == EMBEDDED == GOOD.keys() == BAD.keys()
    assert SERVERLESS < LOCAL < EMBEDDED
    everything = TrainOptions.from_config(as_sent(GOOD, AS_PPO))
    assert (everything.ppo, everything.epsilon, everything.token_weighting) == (True, 0.1, "trajectory")


@pytest.mark.parametrize("option", BAD)
def test_request_and_engine_refuse_the_same(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        TrainOptionsChoice.model_validate({option: BAD[option]})
    if option != "loss":
        with pytest.raises(BadOptions, match=option):
            TrainOptions.from_config({option: BAD[option]})


def test_arts_local_backend_takes_what_we_send_it() -> None:
    """Read, not imported: it needs packages for GPUs."""
    spec = find_spec("art")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "local" / "backend.py").read_text()
    [train] = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AsyncFunctionDef) and node.name == "train"
    ]
    parameters = {argument.arg for argument in train.args.kwonlyargs}
    assert set(as_sent(dict.fromkeys(LOCAL - {"loss"}) | {"loss": "ppo"}, AS_LOSS_FN)) <= parameters


async def test_a_run_trains_with_its_options(data_dir: Path, database_url: str) -> None:
    async def answer(request: Any) -> Any:
        return call("return_final_answer", answer="in May" if request["seed"] % 2 else "unknown", sources=[])

    async with scripted_chat(answer) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            posted = await client.post(
                "/learn-loop",
                json={
                    "iterations": 1,
                    "groups_per_iteration": 2,
                    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
                    "rollout_timeout_s": 99,
                    "train_options": GOOD | {"kimi_k2_tau": None},
                },
            )
            run_id = posted.raise_for_status().json()["run_id"]
            run = await run_with(client, run_id, "completed", "failed")
            chosen = {name: value for name, value in GOOD.items() if name != "kimi_k2_tau"}
            assert (run["status"], run["request"]["train_options"]) == ("completed", chosen)
            assert run["request"]["rollout_timeout_s"] == 99
            [policy] = backend.policies.values()
            assert [dict(request.options) for request in policy.requests] == [chosen]

            fork = await client.post(
                f"/runs/{run_id}/fork", json={"train_options": {"loss": "cispo", "epsilon": None}, "iterations": 1}
            )
            forked = await run_with(client, fork.raise_for_status().json()["run_id"], "completed", "failed")
            remaining = {name: value for name, value in chosen.items() if name != "epsilon"} | {"loss": "cispo"}
            assert forked["request"]["train_options"] == remaining


async def test_what_a_backend_does_not_take_is_refused_by_name(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    settings = settings_for(data_dir, database_url, art_base_model="Qwen/Qwen2.5-7B-Instruct")
    async with served(settings, ScriptedLoop()) as client:
        options = {"epsilon": 0.2, "kl_penalty_coef": 0.1}
        refused = await client.post("/learn-loop", json={"backend": "serverless", "train_options": options})
        assert refused.status_code == 422
        [error] = refused.json()["errors"]
        assert error["loc"] == ["body", "train_options", "kl_penalty_coef"]
        assert "serverless does not take kl_penalty_coef. Available: advantage_balance, epsilon," in error["msg"]
        misspelt = await client.post("/learn-loop", json={"train_options": {"epsilonhigh": 1}})
        assert "epsilon_high" in misspelt.json()["errors"][0]["msg"]
