"""What tokens cost, and which models can answer in a given JSON schema, from the list shipped with litellm.

The list is read as a file: importing litellm takes seconds, and looking up a model through it can contact a server.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

_FILE = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per token. Tokens from a provider's cache cost as much as any other."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost in US dollars of these token counts."""
        return self.prompt * prompt_tokens + self.completion * completion_tokens


def listed_price(model: str) -> Price | None:
    """Return the price of PROVIDER/MODEL; None if it is not listed."""
    entry = _entry(model)
    prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    return None if prompt is None or completion is None else Price(float(prompt), float(completion))


def answers_in_schema(model: str) -> bool:
    """Whether PROVIDER/MODEL is known to support answers in a JSON schema."""
    return bool(_entry(model).get("supports_response_schema"))


def _entry(model: str) -> Mapping[str, Any]:
    """Return the list's entry for the model. The list names models of OpenAI and Anthropic without their provider."""
    provider, _, name = model.partition("/")
    listed = _listed()
    found = listed.get(model) or listed.get(name) or {}
    return found if found.get("litellm_provider") == provider else {}


@cache
def _listed() -> Mapping[str, Mapping[str, Any]]:
    path = distribution("litellm").locate_file(f"litellm/{_FILE}")
    found: dict[str, dict[str, Any]] = json.loads(Path(str(path)).read_bytes())
    return found
