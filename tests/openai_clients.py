"""What people's own OpenAI clients do, as they come: the same against the engine and against the service."""

import json
from contextlib import suppress
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "When is the kickoff?"}]
SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search_inbox",
        "description": "Find mail",
        "parameters": {
            "type": "object",
            "properties": {"keywords": {"type": "array", "items": {"type": "string"}}},
            "required": ["keywords"],
        },
    },
}
ARGUMENTS = {"keywords": ["kickoff"]}

NO_JSON = (b'{"a": NaN}', b'{"a": [-Infinity]}', b'{"a": 1e999}', b'{"a": "\\ud800"}', b'{"\\udfff": 1}')
"""Bodies that Python reads nevertheless."""


def use_sync_client(base_url: str, api_key: str, model: str) -> None:
    """OpenAI's blocking client: whole and streamed replies, choices, logprobs, stops, tools, models, errors.

    `model` always calls SEARCH with ARGUMENTS if it is offered, which a model that was taught to does.
    """
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        _completions(client, model)
        _streams(client, model)
        _tools(client, model)
        _responses(client, model)
        _models(client, model)
        _errors(client, model)


def _completions(client: openai.OpenAI, model: str) -> None:
    body: Any = {"model": model, "messages": MESSAGES, "max_completion_tokens": 8, "seed": 4}
    completion = client.chat.completions.create(**body, n=2, logprobs=True, top_logprobs=2, user="me", store=False)
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.usage is not None
    tokens = [choice.logprobs.content for choice in completion.choices if choice.logprobs and choice.logprobs.content]
    assert completion.usage.completion_tokens == sum(map(len, tokens)) > 0
    assert all(len(token.top_logprobs) == 2 for alternatives in tokens for token in alternatives)
    again = client.chat.completions.create(**body)
    assert again.choices[0].message.content == completion.choices[0].message.content
    readable = [letter for letter in again.choices[0].message.content or "" if letter.isalnum() and letter.isascii()]
    if readable:
        cut = client.chat.completions.create(**body, stop=readable[0])
        assert readable[0] not in (cut.choices[0].message.content or "")
        assert cut.choices[0].finish_reason == "stop"


def _streams(client: openai.OpenAI, model: str) -> None:
    body: Any = {"model": model, "messages": MESSAGES, "max_completion_tokens": 8, "seed": 4}
    whole = client.chat.completions.create(**body)
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def _tools(client: openai.OpenAI, model: str) -> None:
    body: Any = {
        "model": model,
        "messages": MESSAGES,
        "tools": [SEARCH],
        "tool_choice": "auto",
        "temperature": 0,
        "max_completion_tokens": 60,
    }
    called = client.chat.completions.create(**body).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls is not None
    [call] = called.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "search_inbox"
    assert json.loads(call.function.arguments) == ARGUMENTS
    with client.chat.completions.stream(**body) as stream:  # the client's own accumulator
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls
    assert streamed.tool_calls[0].function.arguments == call.function.arguments
    with_result: Any = [
        *MESSAGES,
        called.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "m41 Kickoff moved"},
    ]
    assert client.chat.completions.create(**{**body, "messages": with_result}).choices
    without_call = client.chat.completions.create(**{**body, "tool_choice": "none"})
    assert without_call.choices[0].message.tool_calls is None


def _responses(client: openai.OpenAI, model: str) -> None:
    """A turn with a call and one with its result, whole and streamed, continued by its id."""
    body: Any = {
        "model": model,
        "instructions": MESSAGES[0]["content"],
        "tools": [{"type": "function", **SEARCH["function"]}],
        "temperature": 0,
        "max_output_tokens": 60,
    }
    first = client.responses.create(**body, input=MESSAGES[1]["content"])
    [call] = first.output
    assert call.type == "function_call"
    assert call.name == "search_inbox"
    assert json.loads(call.arguments) == ARGUMENTS
    with client.responses.stream(**body, input=MESSAGES[1]["content"]) as stream:  # the client's own accumulator
        kinds = [event.type for event in stream]
        [streamed] = stream.get_final_response().output
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "m41 Kickoff moved"}
    second = client.responses.create(**body, input=[answer], previous_response_id=first.id)
    assert second.output
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input="?", tools=[{"type": "local_shell"}])
    assert caught.value.param == "tools"


def _models(client: openai.OpenAI, model: str) -> None:
    listed = {listed_model.id for listed_model in client.models.list()}
    assert model.partition("@")[0] in listed
    assert client.models.retrieve(model).id == model


def _errors(client: openai.OpenAI, model: str) -> None:
    """What is refused says which parameter it is about."""
    refused: dict[str, Any] = {
        "response_format": {"type": "yaml"},
        "frequency_penalty": 1.0,
        "logit_bias": {"50256": -100},
        "temperature": -1.0,
        "n": 100_000,
        "tool_choice": "required",
    }
    for name, value in refused.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=MESSAGES, **{name: value})
        assert (caught.value.param or "").partition(".")[0] == name
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody/nothing", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(f"{model.partition('@')[0]}@77")


def use_langchain(base_url: str, api_key: str, model: str) -> None:
    """LangChain's ChatOpenAI: invoke, stream, batch and bound tools."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.messages.base import BaseMessage
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    chat = ChatOpenAI(
        base_url=base_url,
        api_key=SecretStr(api_key),
        model=model,
        temperature=0,
        max_retries=0,
        max_completion_tokens=60,
    )
    reply = chat.invoke("When is the kickoff?")
    assert isinstance(reply, AIMessage)
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] > 0
    assert "".join(str(chunk.content) for chunk in chat.stream("When is the kickoff?")) == reply.content
    assert [answer.content for answer in chat.batch(["When is the kickoff?"] * 3)] == [reply.content] * 3

    bound = chat.bind_tools([SEARCH])
    messages: list[BaseMessage] = [HumanMessage("When is the kickoff?")]
    called = bound.invoke(messages)
    assert isinstance(called, AIMessage)
    if called.tool_calls:  # it was taught in another conversation
        messages += [called, ToolMessage("m41 Kickoff moved", tool_call_id=called.tool_calls[0]["id"] or "")]
        assert bound.invoke(messages).type == "ai"
    system: list[Any] = [("system", "Answer."), ("human", "When is the kickoff?")]
    taught = bound.invoke(system)
    assert isinstance(taught, AIMessage)
    assert [(call["name"], call["args"]) for call in taught.tool_calls] == [("search_inbox", ARGUMENTS)]


async def use_agents_sdk(base_url: str, api_key: str, model: str) -> None:
    """The OpenAI Agents SDK, by default with the Responses API and strict tools: run and streamed."""
    from agents import Agent, MaxTurnsExceeded, ModelSettings, RunConfig, RunContextWrapper, Runner, function_tool
    from agents.models.openai_provider import OpenAIProvider

    searched: list[list[str]] = []

    def search_inbox(context: RunContextWrapper[None], keywords: list[str]) -> str:
        """Find mail"""
        searched.append(keywords)
        return "m41 Kickoff moved"

    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        provider = OpenAIProvider(openai_client=client)
        config = RunConfig(model_provider=provider, tracing_disabled=True)
        plain: Agent[None] = Agent(name="assistant", instructions="Answer.", model=model)
        result = await Runner.run(plain, "When is the kickoff?", run_config=config)
        assert result.final_output == result.raw_responses[0].output[0].model_dump()["content"][0]["text"]

        tools = [function_tool(search_inbox)]
        agent: Agent[None] = Agent(
            name="assistant",
            instructions="Answer.",
            model=model,
            tools=list(tools),
            model_settings=ModelSettings(temperature=0),  # sampled, even a taught model says something else at times
        )
        for run in (_agent_run, _agent_stream):
            searched.clear()
            with suppress(MaxTurnsExceeded):  # the model knows little but to call the tool
                await run(Runner, agent, config)
            assert searched[0] == ARGUMENTS["keywords"]


async def _agent_run(runner: Any, agent: Any, config: Any) -> None:
    await runner.run(agent, "When is the kickoff?", max_turns=2, run_config=config)


async def _agent_stream(runner: Any, agent: Any, config: Any) -> None:
    streamed = runner.run_streamed(agent, "When is the kickoff?", max_turns=2, run_config=config)
    async for _ in streamed.stream_events():
        pass
