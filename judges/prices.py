"""What tokens cost, and which models answer in a given JSON schema, by the list that comes with litellm.

The list is read as a file: importing litellm takes seconds, and looking a model up through it can ask a server.
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
    """US dollars for each token. Tokens that a provider had cached count like all others."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars for that many tokens."""
        return self.prompt * prompt_tokens + self.completion * completion_tokens


def listed_price(model: str) -> Price | None:
    """The price of PROVIDER/MODEL; None if the list does not have it."""
    entry = _entry(model)
    prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    return None if prompt is None or completion is None else Price(float(prompt), float(completion))


def answers_in_schema(model: str) -> bool:
    """Whether PROVIDER/MODEL is known to answer in the form of a JSON schema."""
    return bool(_entry(model).get("supports_response_schema"))


def _entry(model: str) -> Mapping[str, Any]:
    """The list names models of OpenAI and Anthropic without their provider."""
    provider, _, name = model.partition("/")
    listed = _listed()
    found = listed.get(model) or listed.get(name) or {}
    return found if found.get("litellm_provider") == provider else {}


@cache
def _listed() -> Mapping[str, Mapping[str, Any]]:
    path = distribution("litellm").locate_file(f"litellm/{_FILE}")
    found: dict[str, dict[str, Any]] = json.loads(Path(str(path)).read_bytes())
    return found
