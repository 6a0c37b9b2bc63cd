"""Parameters of OpenAI's requests: what is not supported is refused by its name."""

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
"""Parameters of OpenAI about billing, storage and caches: they change no reply, so they are accepted."""


class BadParameter(ValueError):
    """A request that stands for no chat completion. `param` and `code` are those of OpenAI's error object."""

    def __init__(self, message: str, *, param: str, code: str = "unsupported_parameter") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def parameter_fault(parameter: str, message: str, *, code: str = "invalid_value") -> PydanticCustomError:
    """What is wrong with a parameter, where only the whole request shows it; `errors.read_body` tells its name."""
    return PydanticCustomError(code, "{message}", {"message": message, "parameter": parameter})


def refuse_unsupported(
    body: Json, honoured: Container[str], unsupported: Mapping[str, tuple[Json, ...]], no_effect: Container[str]
) -> None:
    """Raise for a parameter that would be ignored although it asks for something.

    `unsupported` has, of parameters that are not honoured, the values that ask for nothing; null always does.
    """
    for name, given in body.items() if isinstance(body, dict) else ():
        if given is None or name in honoured or name in no_effect or given in unsupported.get(name, ()):
            continue
        raise parameter_fault(name, f"{name} is not supported", code="unsupported_parameter")
