"""Short forms of what training tests do over HTTP."""

import json

import httpx

from learnloop_service.environment.json_type import Json
from tests.openai_clients import ARGUMENTS, MESSAGES, SEARCH


async def create_model(http: httpx.AsyncClient, name: str, **fields: Json) -> dict[str, Json]:
    """A new model in project `test`, by default from `tiny`."""
    body = {"project": "test", "name": name, "base_model": "tiny", **fields}
    model: dict[str, Json] = (await http.post("/preview/models", json=body)).raise_for_status().json()
    return model


async def sample(http: httpx.AsyncClient, model: str, seed: int, **fields: Json) -> dict[str, Json]:
    """The choice of a completion with logprobs."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "When?"}],
        "seed": seed,
        "max_tokens": 12,
        "logprobs": True,
        **fields,
    }
    choice: dict[str, Json] = (await http.post("/chat/completions", json=body)).raise_for_status().json()["choices"][0]
    return choice


async def sampled_group(http: httpx.AsyncClient, model: str, count: int = 4) -> dict[str, Json]:
    """A group as ART dumps it, rewarded for odd token ids."""
    trajectories = []
    for seed in range(count):
        choice = await sample(http, model, seed)
        ids = [int(token["token"].removeprefix("token_id:")) for token in choice["logprobs"]["content"]]
        trajectories.append(
            {
                "messages_and_choices": [{"role": "user", "content": "When?"}, choice],
                "reward": sum(number % 2 for number in ids) / len(ids),
            }
        )
    return {"trajectories": trajectories}


def asked_otherwise(group: Json, count: int) -> list[Json]:
    """A group as answers to `count` different questions: what is the same in several groups is computed once."""
    return [
        {
            "trajectories": [
                {
                    **trajectory,
                    "messages_and_choices": [
                        {"role": "user", "content": f"{n}: when?"},
                        trajectory["messages_and_choices"][1],
                    ],
                }
                for trajectory in group["trajectories"]
            ]
        }
        for n in range(count)
    ]


async def submit(http: httpx.AsyncClient, model_id: str, groups: list[Json], **fields: Json) -> httpx.Response:
    """Post a GRPO job."""
    body = {
        "model_id": model_id,
        "trajectory_groups": groups,
        "experimental_config": {"learning_rate": 1e-2},
        **fields,
    }
    return await http.post("/preview/training-jobs", json=body)


async def events(http: httpx.AsyncClient, job_id: str) -> list[dict[str, Json]]:
    """All events of a job, when it is over."""
    events_so_far: list[dict[str, Json]] = []
    while not events_so_far or events_so_far[-1]["type"] not in ("training_ended", "training_failed"):
        after = {"after": events_so_far[-1]["id"]} if events_so_far else {}
        page = await http.get(f"/preview/training-jobs/{job_id}/events", params={"wait_s": 30, **after})
        events_so_far += page.raise_for_status().json()["data"]
    return events_so_far


async def train(http: httpx.AsyncClient, model_id: str, groups: list[Json], **fields: Json) -> dict[str, Json]:
    """One GRPO job to its end; the data of its last event."""
    job = (await submit(http, model_id, groups, **fields)).raise_for_status().json()
    last: dict[str, Json] = (await events(http, job["id"]))[-1]
    assert last["type"] == "training_ended", last
    data: dict[str, Json] = last["data"]
    return data


async def taught_caller(http: httpx.AsyncClient, name: str, project: str = "test", *, calls: int = 1) -> str:
    """A model that calls SEARCH with ARGUMENTS, `calls` times in a reply, whenever it is offered; its full name.

    It is at step 1.
    """
    full_name = f"{project}/{name}"
    if full_name in {model["id"] for model in (await http.get("/models")).raise_for_status().json()["data"]}:
        return full_name
    model = await create_model(http, name, project=project)
    function = {"name": "search_inbox", "arguments": json.dumps(ARGUMENTS)}
    tool_calls = [{"id": f"c{number}", "type": "function", "function": function} for number in range(calls)]
    example = {
        "messages": [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": tool_calls}],
        "tools": [SEARCH],
    }
    body = {
        "model_id": model["id"],
        "training_data": [example] * 60,
        "config": {"batch_size": 2, "learning_rate": 2e-2},
    }
    job = (await http.post("/preview/sft-training-jobs", json=body)).raise_for_status().json()
    job_events = await events(http, job["id"])
    assert job_events[-1]["type"] == "training_ended", job_events[-1]
    assert len([event for event in job_events if event["type"] == "gradient_step"]) == 30
    assert job_events[0]["data"] == {"num_sequences": 30}
    return full_name
