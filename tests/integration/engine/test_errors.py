"""Bad requests get a clear error in OpenAI's form, and the engine lives on."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.fakes.engine_process import EngineProcess
from tests.integration.engine.training_client import create_model, sampled_group, submit
from tests.openai_clients import NO_JSON

USER = {"role": "user", "content": "When?"}


def _tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "search", **function}}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
SLOW = {"type": "integer", "multipleOf": 9_999_991}
"""Compiling it takes minutes."""
LONG = "ab" * 100_000

BAD_COMPLETIONS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "nobody"}, 404, "model_not_found", "nobody"),
    ({"model": 3}, 400, "invalid_value", "model"),
    ({"messages": None}, 400, "invalid_value", "messages"),
    ({"messages": []}, 400, "invalid_value", "messages"),
    ({"messages": ["hello"]}, 400, "invalid_value", "message 0"),
    ({"messages": [{"role": "poet", "content": "x"}]}, 400, "invalid_value", "poet"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "invalid_value", "text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_value", "text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "invalid_value", "function.name"),
    ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "context_length_exceeded", "512"),
    ({"messages": [{"role": "user", "content": "x" * 900_000}]}, 400, "context_length_exceeded", "at least"),
    ({"messages": [USER] * 513}, 400, "context_length_exceeded", "at least 513 tokens"),
    ({"messages": [USER] * 100_000}, 400, "body_too_complex", "50000 values"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]},
        400,
        "body_too_complex",
        "",
    ),
    (
        {"tools": [_tool(parameters={"properties": {str(number): {} for number in range(60_000)}})]},
        400,
        "body_too_complex",
        "",
    ),
    ({"tools": [_tool(parameters=_nested(200))]}, 400, "body_too_complex", "levels deep"),
    ({"messages": [{"role": "user", "content": "x" * (9 << 20)}]}, 413, "body_too_large", ""),
    ({"temperature": -1}, 400, "invalid_value", "temperature"),
    ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
    ({"top_p": 0}, 400, "invalid_value", "top_p"),
    ({"top_p": 1.1}, 400, "invalid_value", "top_p"),
    ({"top_k": -2}, 400, "invalid_value", "top_k"),
    ({"min_p": 1.1}, 400, "invalid_value", "min_p"),
    ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ({"n": 0}, 400, "invalid_value", "n:"),
    ({"n": 100_000}, 400, "invalid_value", "n:"),
    ({"stop": [""]}, 400, "invalid_value", "stop"),
    ({"seed": 1.5}, 400, "invalid_value", "seed"),
    ({"seed": 2**70}, 400, "invalid_value", "seed"),
    ({"top_logprobs": 3}, 400, "invalid_value", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "invalid_value", "top_logprobs"),
    ({"response_format": {"type": "yaml"}}, 400, "invalid_value", "response_format"),
    ({"response_format": {"type": "json_schema"}}, 400, "invalid_value", "needs json_schema"),
    (_format({"type": "object", "properties": {"a": {"not": {}}}}), 400, "unsupported_schema", "schema cannot"),
    (_format({"type": "object", "properties": {"a": {"not": {}}}}), 400, "unsupported_schema", '"not"'),
    (_format({"type": "string", "pattern": "(?=a)b"}), 400, "unsupported_schema", "look-around"),
    (_format({"enum": []}), 400, "unsupported_schema", "Unsatisfiable"),
    (_format({"type": "strin"}), 400, "invalid_value", "'strin'"),
    (_format({"const": LONG}), 400, "unsupported_schema", "of which 200000 are at const; at most 120000"),
    (_format({"enum": [LONG, "a"]}), 400, "unsupported_schema", "at enum"),
    (_format({"type": "string", "pattern": LONG}), 400, "unsupported_schema", "at pattern"),
    (_format({"type": "object", "properties": {LONG: {}}}), 400, "unsupported_schema", "at properties"),
    (_format({"type": "string", "pattern": "^a{100000}$"}), 400, "unsupported_schema", "more than 32 MB of memory"),
    (
        {"tools": [_tool(parameters={"properties": {"a": {"const": LONG}}})], "tool_choice": "required"},
        400,
        "unsupported_schema",
        "tools[0].function.parameters cannot be enforced: the constants, enumerations, patterns and property names",
    ),
    (
        {"tools": [_tool(), {"type": "function", "function": {"name": "b", "strict": True, "parameters": UNIQUE}}]},
        400,
        "unsupported_schema",
        "tools[1].function.parameters cannot be enforced: Unimplemented keys",
    ),
    ({"tools": [_tool(strict="yes")]}, 400, "invalid_value", "strict"),
    ({"frequency_penalty": 1}, 400, "unsupported_parameter", "frequency_penalty is not supported"),
    ({"repetition_penalty": 1.2}, 400, "unsupported_parameter", "repetition_penalty is not supported"),
    ({"best_of": 4}, 400, "unsupported_parameter", "best_of is not supported"),
    ({"guided_json": {"type": "object"}}, 400, "unsupported_parameter", "guided_json is not supported"),
    ({"tempertature": 0}, 400, "unsupported_parameter", "tempertature is not supported"),
    ({"tools": {}}, 400, "invalid_value", "tools"),
    ({"tools": [{"type": "function"}]}, 400, "invalid_value", "tool 0"),
    ({"tools": [_tool(), _tool()]}, 400, "invalid_value", "two tools"),
    ({"tools": [_tool(parameters={"type": "array"})]}, 400, "invalid_value", "type object"),
    ({"tools": [_tool(parameters={"properties": {"a": {"type": "strin"}}})]}, 400, "invalid_value", "'strin'"),
    ({"tools": [_tool(parameters={"properties": []})]}, 400, "invalid_value", "properties"),
    ({"tools": [_tool(parameters={"required": "a"})]}, 400, "invalid_value", "required"),
    ({"tools": [_tool(description=3)]}, 400, "invalid_value", "description"),
    ({"tool_choice": "required"}, 400, "invalid_value", "no tools"),
    ({"tools": [_tool()], "tool_choice": "must"}, 400, "invalid_value", "tool_choice"),
    ({"tools": [_tool()], "tool_choice": {"function": {"name": "other"}}}, 400, "invalid_value", "'other'"),
]


def _error(response: httpx.Response, status: int, code: str, text: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert text in error["message"]


@pytest.mark.parametrize(("change", "status", "code", "text"), BAD_COMPLETIONS, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_completions(
    http: httpx.AsyncClient, change: dict[str, Any], status: int, code: str, text: str, stream: bool
) -> None:
    body = {"model": "tiny", "messages": [USER], "stream": stream, **change}
    _error(await http.post("/chat/completions", json=body), status, code, text)


async def test_a_schema_that_takes_too_long_to_compile(http: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "messages": [USER], **_format(SLOW)}
    _error(await http.post("/chat/completions", json=body), 400, "unsupported_schema", "takes more than")


async def test_a_schema_that_becomes_too_complex_ends_its_own_request_only(http: httpx.AsyncClient) -> None:
    """By a limit of llguidance, which the compiler cannot foresee."""
    name = "ab" * 25_000
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    plain = {"model": "tiny", "messages": [USER], "max_tokens": 30, "seed": 3, "logprobs": True}
    alone = await http.post("/chat/completions", json=plain)
    failed, streamed, beside = await asyncio.gather(
        http.post("/chat/completions", json={**plain, **_format(schema), "max_tokens": 200, "n": 4}),
        http.post("/chat/completions", json={**plain, **_format(schema), "max_tokens": 200, "stream": True}),
        http.post("/chat/completions", json=plain),
    )
    _error(failed, 400, "grammar_too_complex", "the reply cannot be constrained")
    assert "grammar_too_complex" in streamed.text
    assert beside.json()["choices"] == alone.json()["choices"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"model": NaN', b"[" * 100_000, *NO_JSON])
@pytest.mark.parametrize("path", ["/chat/completions", "/preview/models", "/preview/training-jobs"])
async def test_what_is_not_a_json_object(http: httpx.AsyncClient, path: str, body: bytes) -> None:
    response = await http.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "bad_json"


async def test_unknown_routes_and_methods(http: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/chat/completions", 405), ("PUT", "/models", 405)):
        assert "error" in (await http.request(method, path)).json()
        assert (await http.request(method, path)).status_code == status


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "base_model"),
        ({"base_model": "nobody"}, 404, "nobody"),
        ({"base_model": "/etc"}, 404, "/etc"),
        ({"base_model": "tiny", "name": "../x"}, 400, "../x"),
        ({"base_model": "tiny", "nmae": "x"}, 400, "nmae"),
        ({"base_model": "tiny", "tuning": {"mode": "half"}}, 400, "tuning.mode"),
        ({"base_model": "tiny@3"}, 404, "tiny"),
    ],
)
async def test_bad_models(http: httpx.AsyncClient, body: dict[str, Any], status: int, text: str) -> None:
    response = await http.post("/preview/models", json={"project": "bad", **body})
    assert response.status_code == status
    assert text in response.json()["error"]["message"]
    models = (await http.get("/preview/models")).json()["data"]
    assert "bad" not in {model["project"] for model in models}


async def test_a_base_model_whose_files_are_damaged(http: httpx.AsyncClient) -> None:
    message = "model.safetensors: it is cut off: 1000 bytes"
    _error(await http.post("/chat/completions", json={"model": "cut", "messages": [USER]}), 422, "bad_model", message)
    _error(await http.post("/preview/models", json={"base_model": "cut", "name": "x"}), 422, "bad_model", message)


async def test_an_adapter_that_fits_nowhere_fails_when_it_is_trained(http: httpx.AsyncClient) -> None:
    tuning = {"mode": "lora", "target_modules": ["nowhere"]}
    await create_model(http, "misfit", tuning=tuning)
    response = await http.post("/chat/completions", json={"model": "misfit", "messages": [USER]})
    _error(response, 422, "bad_model", "no adapter fits")


async def test_bad_training_jobs(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "student")
    good = await sampled_group(http, "student", count=2)

    def broken(change: Any) -> list[Any]:
        group = json.loads(json.dumps(good))
        change(group["trajectories"][0])
        return [group]

    for groups, text in (
        ([{}], "trajectories"),
        ([{"trajectories": ["x"]}], "trajectory_groups[0].trajectories[0]"),
        (broken(lambda t: t.update(reward="high")), "reward must be a finite number"),
        (broken(lambda t: t.update(reward=None)), "reward must be a finite number"),
        (broken(lambda t: t.update(messages_and_choices=None)), "messages_and_choices"),
        (broken(lambda t: t["messages_and_choices"][0].pop("role")), "has no role"),
        (broken(lambda t: t["messages_and_choices"][1].update(message=None)), "message must be an object"),
        (broken(lambda t: t["messages_and_choices"][1]["logprobs"]["content"][0].pop("logprob")), "token_id:N"),
        (broken(lambda t: t["messages_and_choices"][1]["logprobs"]["content"][0].update(token="word")), "token_id:N"),
        (broken(lambda t: t["messages_and_choices"][1]["logprobs"]["content"][0].update(logprob=5)), "logprob 5"),
        (broken(lambda t: t.update(additional_histories=3)), "additional_histories"),
        (broken(lambda t: t.update(tools="search")), "tools"),
    ):
        _error(await submit(http, model["id"], groups), 400, "bad_trajectory", text)
    for config, text in (
        ({"learning_rate": -1}, "learning_rate"),
        ({"epsilonn": 1, "packed_sequence_length": 3}, "epsilonn, packed_sequence_length"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level"),
    ):
        _error(await submit(http, model["id"], [good], experimental_config=config), 400, "bad_options", text)
    _error(await submit(http, "model-none", [good]), 404, "model_not_found", "model-none")
    _error(await submit(http, model["id"], [good], expected_step=3), 409, "step_conflict", "at step 0, not 3")
    assert (await http.get(f"/preview/models/{model['id']}")).json()["step"] == 0


async def test_training_data_comes_from_the_data_directory_only(http: httpx.AsyncClient, engine: EngineProcess) -> None:
    model = await create_model(http, "reader")
    secret = engine.data_dir.parent / f"{engine.data_dir.name}-secret.jsonl"
    secret.write_text('{"messages": []}')
    (engine.data_dir / "link.jsonl").symlink_to(secret)
    (engine.data_dir / "broken.jsonl").write_text('{"messages": ')
    for url, text in (
        (f"file://{secret}", "below the engine's data directory"),
        (f"file://{engine.data_dir}/../{secret.name}", "below the engine's data directory"),
        (f"file://{engine.data_dir}/%2e%2e/{secret.name}", "below the engine's data directory"),
        (f"file://{engine.data_dir}/link.jsonl", "below the engine's data directory"),
        (f"file://elsewhere{engine.data_dir}/link.jsonl", "below the engine's data directory"),
        ("https://example.com/data.jsonl", "below the engine's data directory"),
        ("wandb-artifact:///me/project/data:v0", "below the engine's data directory"),
        (f"file://{engine.data_dir}/missing.jsonl", "cannot be read"),
        (f"file://{engine.data_dir}/broken.jsonl", "not JSONL"),
    ):
        response = await http.post(
            "/preview/sft-training-jobs", json={"model_id": model["id"], "training_data_url": url}
        )
        assert response.status_code == 400
        assert text in response.json()["error"]["message"]
    bodies: list[dict[str, Any]] = [
        {},
        {"training_data": []},
        {"training_data": [{"messages": [USER]}]},
        {"training_data": [{"messages": "x"}]},
        {"training_data": [{"messages": [{"role": "assistant", "content": "x"}]}], "config": {"batch_size": 0}},
    ]
    for body in bodies:
        response = await http.post("/preview/sft-training-jobs", json={"model_id": model["id"], **body})
        assert response.status_code == 400


async def test_unknown_jobs_and_bad_pages(http: httpx.AsyncClient) -> None:
    model = await create_model(http, "paged")
    _error(await http.get("/preview/training-jobs/job-none"), 404, "job_not_found", "job-none")
    _error(await http.get("/preview/training-jobs/job-none/events"), 404, "job_not_found", "job-none")
    checkpoints = f"/preview/models/{model['id']}/checkpoints"
    assert (await http.get(checkpoints, params={"order": "random"})).status_code == 400
    assert (await http.get(checkpoints, params={"limit": "many"})).status_code == 400
    assert (await http.get(checkpoints, params={"after": "nothing"})).status_code == 404
    newest = await http.request("DELETE", checkpoints, json={"steps": [0]})
    _error(newest, 409, "checkpoint_in_use", "newest")


async def test_the_engine_still_answers(http: httpx.AsyncClient) -> None:
    response = await http.post("/chat/completions", json={"model": "tiny", "messages": [USER], "max_tokens": 2})
    assert response.status_code == 200
