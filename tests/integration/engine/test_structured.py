"""Structured output and strict tools, with the clients that people use, of a model that knows nothing of either."""

import asyncio
import json
from typing import TYPE_CHECKING, Literal

import openai
import pytest
from pydantic import BaseModel, Field, SecretStr

from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import EngineProcess
from tests.openai_clients import MESSAGES

if TYPE_CHECKING:  # its import takes a second
    from langchain_openai import ChatOpenAI

SHORT: Json = {"seed": 5, "max_tokens": 300}


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


class Meeting(BaseModel):
    """When people meet."""

    weekday: Literal["Monday", "Friday"]
    people: list[Person] = Field(max_length=2)
    remark: str | None = Field(max_length=5)


class Weather(BaseModel):
    """Tells the weather."""

    where: Literal["here", "there"]


@pytest.fixture
def langchain(engine: EngineProcess) -> "ChatOpenAI":
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="tiny", base_url=engine.base_url, api_key=SecretStr("none"), max_retries=0, seed=3)


async def test_parse_of_the_openai_client(client: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        parsed = await client.chat.completions.parse(
            model="tiny", messages=MESSAGES, response_format=Meeting, seed=seed, max_tokens=300
        )
        assert isinstance(parsed.choices[0].message.parsed, Meeting)
        assert parsed.choices[0].finish_reason == "stop"


async def test_parse_of_strict_tools(client: openai.AsyncOpenAI) -> None:
    tools = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Person)]
    parsed = await client.chat.completions.parse(
        model="tiny", messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False, **SHORT
    )
    [call] = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather | Person)
    assert parsed.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Weather"}}])
async def test_a_demanded_call_is_made_streamed_too(client: openai.AsyncOpenAI, choice: Json) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    body: Json = {"model": "tiny", "messages": MESSAGES, "tools": tools, "tool_choice": choice, "temperature": 0}
    body |= {"parallel_tool_calls": False, "max_tokens": 300}
    whole = await client.chat.completions.create(**body)
    async with client.chat.completions.stream(**body) as events:
        streamed = await events.get_final_completion()
    for completion in (whole, streamed):
        [call] = completion.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "Weather"
        Weather.model_validate_json(call.function.arguments)


async def test_a_json_object(client: openai.AsyncOpenAI) -> None:
    body: Json = {"model": "tiny", "messages": MESSAGES, "response_format": {"type": "json_object"}, "max_tokens": 300}
    completions = [await client.chat.completions.create(**body, seed=seed) for seed in range(6)]
    whole = [completion.choices[0] for completion in completions if completion.choices[0].finish_reason == "stop"]
    assert whole
    assert all(isinstance(json.loads(choice.message.content or ""), dict) for choice in whole)


async def test_a_reply_that_is_cut_says_so(client: openai.AsyncOpenAI) -> None:
    body: Json = {"model": "tiny", "messages": MESSAGES, "response_format": Meeting, "max_tokens": 3}
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(**body)


async def test_keywords_that_cannot_be_enforced_are_refused_in_strict_schemas(
    client: openai.AsyncOpenAI,
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean", "not": {"const": True}}}, "required": ["a"]}
    for strict in (False, True):
        response_format: Json = {
            "type": "json_schema",
            "json_schema": {"name": "a", "strict": strict, "schema": schema},
        }
        replying = client.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format=response_format, **SHORT
        )
        if strict:
            with pytest.raises(openai.BadRequestError, match="not") as caught:
                await replying
            assert caught.value.param == "response_format"
        else:
            reply = (await replying).choices[0]
            assert reply.finish_reason == "length" or "a" in json.loads(reply.message.content or "")


async def test_log_probabilities_are_those_of_the_model_without_the_grammar(client: openai.AsyncOpenAI) -> None:
    """What training compares with: a token that was forced was not certain to the model."""
    response_format: Json = {
        "type": "json_schema",
        "json_schema": {"name": "one", "strict": True, "schema": {"const": "kickoff"}},
    }
    forced = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=response_format, logprobs=True, **SHORT
    )
    assert forced.choices[0].message.content == '"kickoff"'
    assert forced.choices[0].logprobs is not None
    tokens = forced.choices[0].logprobs.content or []
    assert all(token.logprob < -0.01 for token in tokens)


async def test_the_same_reply_whether_or_not_others_are_constrained(client: openai.AsyncOpenAI) -> None:
    body: Json = {"model": "tiny", "messages": MESSAGES, "seed": 9, "max_tokens": 40, "logprobs": True}
    constrained = {**body, "response_format": {"type": "json_object"}}
    alone = await client.chat.completions.create(**body)
    beside = [client.chat.completions.create(**constrained | {"seed": seed}) for seed in range(5)]
    together, *_ = await asyncio.gather(client.chat.completions.create(**body), *beside)
    assert together.choices[0] == alone.choices[0]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_structured_output_of_langchain(
    langchain: "ChatOpenAI", method: Literal["json_schema", "function_calling"]
) -> None:
    structured = langchain.with_structured_output(Meeting, method=method, strict=True)
    assert isinstance(await asyncio.to_thread(structured.invoke, "When?"), Meeting)


async def test_json_mode_of_langchain(langchain: "ChatOpenAI") -> None:
    structured = langchain.with_structured_output(None, method="json_mode", include_raw=True)
    reply: Json = await asyncio.to_thread(structured.invoke, "When?")
    assert reply["parsing_error"] is None or reply["raw"].response_metadata["finish_reason"] == "length"
