"""A model on the operator's list: its name in requests, its address, its key and its price."""

from typing import Annotated, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from learnloop_service.app.domain.names import MODEL_PATTERN
from learnloop_service.judges.prices import Price, listed_price
from learnloop_service.judges.providers import provider_of

_MILLION = 1e6
_Dollars = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None


class ListedModel(BaseModel):
    """One entry of LEARNLOOP_MODELS. Its key is sent only to its own address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(pattern=MODEL_PATTERN, max_length=256)
    """The model, as PROVIDER/MODEL."""
    name: str = Field(default_factory=lambda fields: fields.get("model", ""), pattern=MODEL_PATTERN, max_length=256)
    """Name in requests; `model` by default."""
    base_url: str | None = Field(default=None, max_length=1_000)
    """Address of an OpenAI-compatible server; None for the provider's own address."""
    key: SecretStr | None = None
    """API key; None if the server requires none."""
    usd_per_million_prompt_tokens: _Dollars = None
    usd_per_million_completion_tokens: _Dollars = None

    @field_validator("model")
    @classmethod
    def _of_a_known_provider(cls, value: str) -> str:
        provider_of(value)
        return value

    @field_validator("base_url")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        return None if value is None else server_url(value)

    @model_validator(mode="after")
    def _priced_whole(self) -> Self:
        if (self.usd_per_million_prompt_tokens is None) != (self.usd_per_million_completion_tokens is None):
            raise ValueError("give the price of prompt tokens and that of completion tokens, or neither")
        return self

    @property
    def price(self) -> Price | None:
        """Return the entry's own price, or the list's, or None if neither is known."""
        prompt, completion = self.usd_per_million_prompt_tokens, self.usd_per_million_completion_tokens
        if prompt is None or completion is None:
            return listed_price(self.model)
        return Price(prompt / _MILLION, completion / _MILLION)


def server_url(value: str) -> str:
    """Return the address of a server without a trailing slash. Raises ValueError."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise ValueError(f"{value!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise ValueError("expected the address of a server such as https://llm.internal:8000/v1")
    return value.rstrip("/")
