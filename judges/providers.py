"""Providers of language models, by the names that litellm gives them.

All of them speak OpenAI's chat completions at a fixed address, with a key in the header `Authorization`. A server that
is not in the table is asked under the name `openai`, with its own address.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's address, and the environment variable that usually holds its key."""

    base_url: str
    key_variable: str


PROVIDERS: Mapping[str, Provider] = {
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
}


def provider_of(model: str) -> Provider:
    """Return the provider of a model named PROVIDER/MODEL. Raises ValueError for another name."""
    name, _, rest = model.partition("/")
    if name not in PROVIDERS or not rest:
        raise ValueError(
            f"{model!r} does not name a provider that can be asked; expected PROVIDER/MODEL with one of "
            f"{', '.join(PROVIDERS)}, or openai/MODEL and the base_url of any OpenAI-compatible server"
        )
    return PROVIDERS[name]
