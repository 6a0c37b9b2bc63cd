"""Parameters of OpenAI's requests. Unsupported ones are rejected by name."""

from collections.abc import Container, Mapping, Sequence

from pydantic_core import PydanticCustomError

from learnloop_service.environment.json_type import Json

HINTS = frozenset(
    {
        "client_metadata",
        "context_management",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "verbosity",
    }
)
"""OpenAI parameters that ask for nothing that a reply would be wrong without. They are accepted without effect."""
NO_EFFECT = frozenset({"metadata", "safety_identifier", "service_tier", "store", "user"}) | HINTS
"""OpenAI parameters that do not change the reply: hints, and those for billing and storage."""


class BadParameter(ValueError):
    """The request cannot be converted to a chat completion. `param` and `code` are those of OpenAI's error object."""

    def __init__(self, message: str, *, param: str, code: str = "unsupported_parameter") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def parameter_fault(parameter: str, message: str, *, code: str = "invalid_value") -> PydanticCustomError:
    """Return an error about a parameter from a check of the whole request; `errors.read_body` reports the parameter's
    name."""
    return PydanticCustomError(code, "{message}", {"message": message, "parameter": parameter})


def hint_warnings(body: Mapping[str, Json], hints: Container[str] = HINTS) -> list[str]:
    """Return a warning for each hint that the body gives."""
    return [hint_warning(name) for name, value in body.items() if name in hints and value not in (None, [], {})]


def hint_warning(name: str) -> str:
    """Return the warning about a hint."""
    return f"The hint {name} was accepted and has no effect."


def hosted_tool_warnings(left_out: Sequence[str]) -> list[str]:
    """Return a warning for each hosted tool that the model is not offered."""
    return [f"The hosted tool {kind} is not offered to the model: there are no hosted tools here." for kind in left_out]


def refuse_unsupported(
    body: Json, honoured: Container[str], unsupported: Mapping[str, tuple[Json, ...]], no_effect: Container[str]
) -> None:
    """Raise for a parameter that requests something and would be ignored.

    `unsupported` maps unsupported parameters to the values that request nothing; null counts as one for every
    parameter.
    """
    for name, value in body.items() if isinstance(body, dict) else ():
        if value is None or name in honoured or name in no_effect or value in unsupported.get(name, ()):
            continue
        raise parameter_fault(name, f"{name} is not supported", code="unsupported_parameter")
