"""The providers that litellm knows, read without importing it, which takes seconds."""

import ast
from importlib.metadata import distribution
from pathlib import Path


def known_to_litellm() -> list[str]:
    """Return the providers' names, as they occur in names of models."""
    source = Path(str(distribution("litellm").locate_file("litellm/types/utils.py"))).read_text(encoding="utf-8")
    names = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "LlmProviders"
    )
    values = [node.value for node in names.body if isinstance(node, ast.Assign)]
    return [str(value.value) for value in values if isinstance(value, ast.Constant)]
