"""What tokens cost, by the list of the package genai-prices, which is part of each of its releases."""

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
"""The list's names of providers, where they differ from ours."""
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for each token. Tokens that a provider had cached count like all others."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars for that many tokens."""
        return self.prompt * prompt_tokens + self.completion * completion_tokens


@cache
def listed_price(model: str) -> Price | None:
    """The price of PROVIDER/MODEL when it is first asked for; None if the list does not have it, or is not installed
    (the extra `prices`). Where long prompts cost more, it is the price of the others."""
    try:
        from genai_prices.data_snapshot import get_snapshot
        from genai_prices.types import TieredPrices
    except ImportError:
        return None
    provider, _, name = model.partition("/")
    try:
        found = get_snapshot().find_provider_model(name, None, _PROVIDERS.get(provider, provider), None)[1]
    except LookupError:
        return None
    prices = found.get_prices(datetime.now(UTC))
    both = (prices.input_mtok, prices.output_mtok)
    prompt, completion = (each.base if isinstance(each, TieredPrices) else each for each in both)
    if prompt is None or completion is None:
        return None
    return Price(float(prompt / _MILLION), float(completion / _MILLION))
