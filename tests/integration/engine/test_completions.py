"""Chat completions of a real engine process through OpenAI's own client."""

import asyncio
import json
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
)

from tests.integration.engine.training_client import taught_caller
from tests.openai_clients import MESSAGES, SEARCH


def _ids(completion: ChatCompletion, choice: int = 0) -> list[int]:
    logprobs = completion.choices[choice].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return [int(token.token.removeprefix("token_id:")) for token in logprobs.content]


async def test_a_reply_with_its_sampled_tokens(client: openai.AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=10, seed=1, logprobs=True, top_logprobs=3
    )
    assert completion.model == "tiny"
    assert completion.usage is not None
    [choice] = completion.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert completion.usage.completion_tokens == len(choice.logprobs.content) <= 10
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    for token in choice.logprobs.content:
        assert token.token.startswith("token_id:")
        assert token.logprob < 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.logprob - 1e-6
    if choice.finish_reason == "length":
        raw = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
        assert raw.decode(errors="replace") == choice.message.content


async def test_token_ids_are_returned_to_clients_that_ask_for_them(client: openai.AsyncOpenAI) -> None:
    """They are in the fields of vLLM."""
    body: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "seed": 1, "logprobs": True, "n": 2}
    plain = await client.chat.completions.create(**body)
    exact = await client.chat.completions.create(**body, extra_body={"return_token_ids": True})
    assert "prompt_token_ids" not in (plain.model_extra or {})
    fields = exact.model_extra or {}
    assert exact.usage is not None
    assert len(fields["prompt_token_ids"]) == exact.usage.prompt_tokens
    assert [(choice.model_extra or {})["token_ids"] for choice in exact.choices] == [_ids(plain, 0), _ids(plain, 1)]
    messages = cast(
        list[ChatCompletionMessageParam], [*MESSAGES, exact.choices[0].message.model_dump(exclude_none=True)]
    )
    messages.append({"role": "user", "content": "And then?"})
    longer = await client.chat.completions.create(
        **{**body, "messages": messages}, extra_body={"return_token_ids": True}
    )
    before = [*fields["prompt_token_ids"], *_ids(exact)]
    assert (longer.model_extra or {})["prompt_token_ids"][: len(before)] == before
    stream = await client.chat.completions.create(**body, stream=True, extra_body={"return_token_ids": True})
    prompts, streamed = [], dict[int, list[int]]()
    async for chunk in stream:
        if "prompt_token_ids" in (chunk.model_extra or {}):
            prompts.append((chunk.model_extra or {})["prompt_token_ids"])
        for delta in chunk.choices:
            streamed.setdefault(delta.index, []).extend((delta.model_extra or {}).get("token_ids", []))
    assert prompts == [fields["prompt_token_ids"]]
    assert streamed == {0: _ids(plain, 0), 1: _ids(plain, 1)}


async def test_a_client_that_kept_the_tokens_of_a_reply_gives_them_back(client: openai.AsyncOpenAI) -> None:
    """A conversation continues with the tokens that were sampled after the engine has forgotten it."""

    async def prompt(extra: dict[str, Any]) -> list[int]:
        messages: Any = [
            *MESSAGES,
            {"role": "assistant", "content": "mail", **extra},
            {"role": "user", "content": "On?"},
        ]
        completion = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=1, extra_body={"return_token_ids": True}
        )
        return cast(list[int], (completion.model_extra or {})["prompt_token_ids"])

    spelled = [7, 8, 9, 8]  # no tokens that the text would give
    plain, exact = await prompt({}), await prompt({"token_ids": spelled})
    begin = next(index for index, (a, b) in enumerate(zip(plain, exact, strict=False)) if a != b)
    assert exact[begin : begin + len(spelled)] == spelled
    rest = exact[begin + len(spelled) :]
    assert rest == plain[-len(rest) :]
    for extra, message in (
        ({"token_ids": [10**6]}, "the model has no token 1000000"),
        ({"token_ids": ["a"]}, "token_ids must be a list of token ids"),
        ({"token_ids": [1], "role": "user"}, "only an assistant's message has token_ids"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            await prompt(extra)


async def test_a_seed_decides_the_reply_whatever_else_is_sampled(client: openai.AsyncOpenAI) -> None:
    async def ask(seed: int) -> list[int]:
        return _ids(
            await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=16, seed=seed, logprobs=True
            )
        )

    alone = [await ask(seed) for seed in range(4)]
    together = await asyncio.gather(*(ask(seed) for seed in reversed(range(20))))
    assert list(reversed(together))[:4] == alone
    assert len({tuple(ids) for ids in together}) == 20


async def test_several_choices_are_those_of_successive_seeds(client: openai.AsyncOpenAI) -> None:
    both = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, seed=5, n=2, logprobs=True
    )
    second = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, seed=6, logprobs=True)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert _ids(both, 1) == _ids(second)
    assert both.usage is not None
    assert both.usage.completion_tokens == len(_ids(both, 0)) + len(_ids(both, 1))


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
async def test_every_seed_that_openai_allows_is_taken(client: openai.AsyncOpenAI, seed: int) -> None:
    completion = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, seed=seed, n=2)
    assert len(completion.choices) == 2


async def test_temperature_zero_is_greedy_and_needs_no_seed(client: openai.AsyncOpenAI) -> None:
    replies = [
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True
        )
        for _ in range(2)
    ]
    assert _ids(replies[0]) == _ids(replies[1])


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1.0}])
async def test_top_k_and_min_p_are_honoured(client: openai.AsyncOpenAI, cut: dict[str, float]) -> None:
    body: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "logprobs": True}
    greedy = await client.chat.completions.create(**body, temperature=0)
    assert _ids(await client.chat.completions.create(**body, temperature=2.0, seed=7, extra_body=cut)) == _ids(greedy)
    none: Any = {"top_k": -1, "min_p": 0}
    free = await client.chat.completions.create(**body, seed=7)
    assert _ids(await client.chat.completions.create(**body, seed=7, extra_body=none)) == _ids(free) != _ids(greedy)


async def test_what_changes_no_reply_is_accepted(client: openai.AsyncOpenAI) -> None:
    asks_for_nothing = {"repetition_penalty": 1.0, "min_tokens": 0, "guided_json": None, "some_new_field": None}
    completion = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=2,
        user="me",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        frequency_penalty=0,
        parallel_tool_calls=True,
        extra_body=asks_for_nothing,
    )
    assert completion.choices


async def test_a_stream_says_the_same_as_a_whole_reply(client: openai.AsyncOpenAI) -> None:
    for seed in range(5):
        whole = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=12, seed=seed, logprobs=True
        )
        stream = await client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=12,
            seed=seed,
            logprobs=True,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, tokens, reasons, usages = "", [], [], []
        async for chunk in stream:
            usages.append(chunk.usage)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
                if choice.logprobs and choice.logprobs.content:
                    tokens += [int(token.token.removeprefix("token_id:")) for token in choice.logprobs.content]
        assert text == whole.choices[0].message.content
        assert tokens == _ids(whole)
        assert reasons[-1] == whole.choices[0].finish_reason
        assert set(reasons[:-1]) == {None}
        assert usages[-1] == whole.usage or usages[-1] is not None
        assert set(usages[:-1]) == {None}


async def test_stop_strings_end_the_reply_and_are_not_part_of_it(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=30, seed=3)
    text = whole.choices[0].message.content or ""
    readable = [letter for letter in text if letter.isalpha() and letter.isascii()]
    assert readable
    stop = readable[-1]
    for stream in (False, True):
        request: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "seed": 3, "stop": [stop]}
        if stream:
            chunks = await client.chat.completions.create(**request, stream=True)
            content = "".join([c.choices[0].delta.content or "" async for c in chunks])
        else:
            cut = await client.chat.completions.create(**request)
            assert cut.choices[0].finish_reason == "stop"
            content = cut.choices[0].message.content or ""
        assert content == text[: text.index(stop)]


async def test_the_next_turn_reuses_what_was_computed_for_the_last(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=10, seed=11, logprobs=True)
    reply = cast(ChatCompletionMessageParam, first.choices[0].message.model_dump(exclude_none=True))
    second = await client.chat.completions.create(
        model="tiny", messages=[*MESSAGES, reply, {"role": "user", "content": "And where?"}], max_tokens=10, seed=12
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    # All of the first prompt and of the reply as it was sampled, but for its last token, which was never fed back.
    assert cached >= first.usage.prompt_tokens + first.usage.completion_tokens - 1


async def test_tool_calls(client: openai.AsyncOpenAI, caller: str) -> None:
    request: Any = {"model": caller, "messages": MESSAGES, "tools": [SEARCH], "temperature": 0, "max_tokens": 60}
    completion = await client.chat.completions.create(**request)
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "search_inbox"
    assert json.loads(call.function.arguments) == {"keywords": ["kickoff"]}

    deltas = [chunk.choices[0] async for chunk in await client.chat.completions.create(**request, stream=True)]
    assert not "".join(choice.delta.content or "" for choice in deltas)
    streamed = [call for choice in deltas for call in choice.delta.tool_calls or []]
    assert [(delta.index, delta.id, delta.function and delta.function.arguments) for delta in streamed] == [
        (0, call.id, call.function.arguments)
    ]
    assert deltas[-1].finish_reason == "tool_calls"

    # The conversation continues with the call and its result, on the ids that were sampled.
    answer = {"role": "tool", "tool_call_id": call.id, "content": "m41 Kickoff moved"}
    messages = [*MESSAGES, choice.message.model_dump(exclude_none=True), answer]
    second = await client.chat.completions.create(**{**request, "messages": messages})
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 40


async def test_without_parallel_calls_the_reply_ends_with_the_first(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    model = await taught_caller(http, "eager", calls=2)
    request: Any = {"model": model, "messages": MESSAGES, "tools": [SEARCH], "temperature": 0, "max_tokens": 120}
    both = (await client.chat.completions.create(**request)).choices[0].message.tool_calls
    assert both is not None
    assert len(both) == 2
    single = await client.chat.completions.create(**request, parallel_tool_calls=False)
    assert single.choices[0].finish_reason == "tool_calls"
    assert single.choices[0].message.tool_calls is not None
    [call] = single.choices[0].message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert json.loads(call.function.arguments) == {"keywords": ["kickoff"]}
    answer = {"role": "tool", "tool_call_id": call.id, "content": "m41"}
    messages = [*MESSAGES, single.choices[0].message.model_dump(exclude_none=True), answer]
    second = await client.chat.completions.create(**{**request, "messages": messages, "max_tokens": 1})
    assert single.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= single.usage.prompt_tokens + single.usage.completion_tokens - 1
    chunks = [
        chunk.choices[0]
        async for chunk in await client.chat.completions.create(**request, stream=True, parallel_tool_calls=False)
    ]
    assert [len(choice.delta.tool_calls) for choice in chunks if choice.delta.tool_calls] == [1]


async def test_without_tools_a_call_is_text(client: openai.AsyncOpenAI, caller: str) -> None:
    completion = await client.chat.completions.create(
        model=caller, messages=MESSAGES, tools=[SEARCH], tool_choice="none", temperature=0, max_tokens=60
    )
    assert completion.choices[0].message.tool_calls is None


async def test_models_are_listed(client: openai.AsyncOpenAI, caller: str) -> None:
    listed = {model.id: model async for model in client.models.list()}
    assert {"tiny", f"test/{caller}"} <= set(listed)
    assert cast(Any, listed[f"test/{caller}"]).step == 1
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")
    completion = await client.chat.completions.create(model=caller, messages=MESSAGES, max_tokens=1)
    assert completion.model == f"test/{caller}@1"
    old = await client.chat.completions.create(model=f"{caller}@0", messages=MESSAGES, max_tokens=1)
    assert old.model == f"test/{caller}@0"
