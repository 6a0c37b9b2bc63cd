"""Prices of tokens, from the list that the installed release of genai-prices contains."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

_PROVIDERS: Mapping[str, str] = {
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "together_ai": "together",
    "xai": "x-ai",
}
"""The list's names of the providers that we call by another name."""
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per token. Tokens that a provider had cached cost as much as others here."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of that many tokens in US dollars."""
        return self.prompt * prompt_tokens + self.completion * completion_tokens


@cache
def listed_price(model: str) -> Price | None:
    """Return the price of PROVIDER/MODEL on the day of the first call, or None if the list lacks the model.

    Without the extra `prices` there is no list. Where long prompts cost more, this is the price of ordinary ones.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
        from genai_prices.types import TieredPrices
    except ImportError:
        return None
    provider, _, name = model.partition("/")
    try:
        listed = get_snapshot().find_provider_model(name, None, _PROVIDERS.get(provider, provider), None)[1]
    except LookupError:
        return None
    prices = listed.get_prices(datetime.now(UTC))
    per_million = (prices.input_mtok, prices.output_mtok)
    prompt, completion = (price.base if isinstance(price, TieredPrices) else price for price in per_million)
    if prompt is None or completion is None:
        return None
    return Price(float(prompt / _MILLION), float(completion / _MILLION))
