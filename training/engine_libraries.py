"""Whether the engine's libraries are installed: an extra, because not every copy of Learnloop runs an engine."""

from importlib.util import find_spec

from learnloop_service.environment.installation import install_command

EXTRA = "embedded"
_MODULES = ("torch", "transformers", "tokenizers", "safetensors")


def missing_libraries() -> str | None:
    """Return in one line which of the engine's libraries are missing and how to add them, or None if none is."""
    missing = [name for name in _MODULES if find_spec(name) is None]
    if not missing:
        return None
    names = ", ".join(missing)
    return f"the engine needs {names} (the extra `{EXTRA}`), not installed here. To add it: {install_command(EXTRA)}"
