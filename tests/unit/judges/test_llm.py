"""Fields that a model does not take, and prices."""

import json

import pytest
from genai_prices.data_snapshot import get_snapshot

from learnloop_service.judges.llm import JudgeUnavailable, complete, response_to
from learnloop_service.judges.prices import _PROVIDERS, Price, listed_price
from learnloop_service.judges.providers import PROVIDERS
from tests.fakes.scripted_judge import KEY, Raw, completion, scripted_judge

QUESTION = [{"role": "user", "content": "?"}]
ANSWER = Raw(body=json.dumps(completion("{}")))


def _refusal(status: int, message: str) -> Raw:
    return Raw(status, json.dumps({"error": {"message": message}}))


async def test_a_field_that_the_model_does_not_take_is_left_out_from_then_on() -> None:
    refusal = _refusal(400, "Unsupported value: 'temperature' does not support 0.0 with this model.")
    async with scripted_judge([refusal, ANSWER, ANSWER]) as server:
        model = server.model()
        for _ in range(2):
            await complete(model, QUESTION, schema={}, temperature=0.0, timeout_s=10)
        assert ["temperature" in request for request in server.requests] == [True, False, False]


async def test_several_fields_are_left_out_or_renamed() -> None:
    refusals = [
        _refusal(400, 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
        _refusal(422, "extra_forbidden: max_completion_tokens"),
    ]
    async with scripted_judge([*refusals, ANSWER]) as server:
        await response_to(server.model(), {"messages": QUESTION, "seed": 1, "max_completion_tokens": 7}, 10)
        assert server.requests[-1] == {"model": "scripted", "messages": QUESTION, "max_tokens": 7}


@pytest.mark.parametrize("message", ["messages are too long", "max_tokens is too large", "temperature"])
async def test_any_other_refusal_is_final(message: str) -> None:
    async with scripted_judge([_refusal(400, message)]) as server:
        with pytest.raises(JudgeUnavailable, match=f"HTTP 400: {message}") as refused:
            await response_to(server.model(), {"messages": QUESTION}, 10)
        assert not refused.value.retryable
        assert len(server.requests) == 1


def test_prices_are_those_of_the_list() -> None:
    assert listed_price("openai/gpt-4.1-mini") == Price(4e-7, 1.6e-6)
    assert listed_price("gemini/gemini-2.0-flash") == Price(1e-7, 4e-7)
    assert listed_price("anthropic/claude-sonnet-4-5") == Price(3e-6, 1.5e-5)
    assert Price(4e-7, 1.6e-6).of(1_000_000, 1_000_000) == pytest.approx(2.0)
    # No other provider's price, and none for a model that the list does not have.
    assert listed_price("groq/gpt-4.1-mini") is None
    assert listed_price("openai/of-our-own") is None
    assert listed_price("nobody/gpt-4.1-mini") is None


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_priced_models(provider: str) -> None:
    """The list names some providers differently."""
    providers = {provider_of_list.id: provider_of_list for provider_of_list in get_snapshot().providers}
    [listed] = [listing for listing in providers.values() if listing.id == _PROVIDERS.get(provider, provider)]
    folder = "accounts/fireworks/models/" if provider == "fireworks_ai" else ""
    priced = [price for model in listed.models if (price := listed_price(f"{provider}/{folder}{model.id}")) is not None]
    assert priced
    assert all(price.prompt >= 0 and price.completion >= 0 for price in priced)
    assert max(price.completion for price in priced) < 1e-2, "dollars for a token, not for a million"


SCHEMA_REFUSED = [
    "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    "This model does not support response format `json_schema`.",
    "This response_format type is unavailable now",
    "json_schema is not supported",
]


@pytest.mark.parametrize("message", SCHEMA_REFUSED)
async def test_every_model_is_asked_for_the_schema_and_without_it_if_it_refuses(message: str) -> None:
    schema = {"type": "object", "properties": {"score": {"type": "number"}}}
    async with scripted_judge([_refusal(400, message), ANSWER]) as server:
        await complete(server.model(), QUESTION, schema=schema, temperature=None, timeout_s=10)
        first, again = server.requests
    assert first["response_format"]["json_schema"]["schema"] == schema
    assert "response_format" not in again


@pytest.mark.parametrize("key", ["1", "0.5", "EMPTY", "scores", "explanation", "no-key"])
async def test_a_key_that_is_a_word_is_not_cut_out_of_answers(key: str) -> None:
    text = json.dumps({"scores": [{"id": "1", "explanation": f"EMPTY, no-key: {key}", "score": 0.5}]})
    async with scripted_judge([Raw(body=json.dumps(completion(text)))]) as server:
        completed = await complete(server.model(api_key=key), QUESTION, schema={}, temperature=None, timeout_s=10)
    assert completed.text == text


async def test_a_secret_key_is_cut_out_of_answers() -> None:
    async with scripted_judge([Raw(body=json.dumps(completion(f"your key is {KEY}")))]) as server:
        completed = await complete(server.model(), QUESTION, schema={}, temperature=None, timeout_s=10)
    assert completed.text == "your key is [key]"
