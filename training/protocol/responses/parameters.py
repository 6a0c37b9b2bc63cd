"""Parameters of OpenAI's requests. Unsupported ones are rejected by name."""

from collections.abc import Container, Mapping

from pydantic_core import PydanticCustomError

from environment.json_type import Json

NO_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""OpenAI parameters for billing, storage and caches. They do not change the reply, so they are accepted."""


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


def refuse_unsupported(
    body: Json, honoured: Container[str], unsupported: Mapping[str, tuple[Json, ...]], no_effect: Container[str]
) -> None:
    """Raise for a parameter that requests something and would be ignored.

    `unsupported` maps unsupported parameters to the values that request nothing; null counts as one for every
    parameter.
    """
    for name, given in body.items() if isinstance(body, dict) else ():
        if given is None or name in honoured or name in no_effect or given in unsupported.get(name, ()):
            continue
        raise parameter_fault(name, f"{name} is not supported", code="unsupported_parameter")
