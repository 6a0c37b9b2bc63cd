"""What peft has put into a model, found without importing peft, whose import takes long and which only adapters need;
and how wide the columns are that joined matrices have for it."""

from typing import Any

COLUMN_MULTIPLE = 64
"""Rows of the joined matrices begin at multiples of 128 bytes."""


def is_adapted(module: Any) -> bool:
    """Whether the module is a layer with LoRA adapters."""
    return hasattr(module, "lora_A")


def has_adapter(model: Any) -> bool:
    """Whether the model is one that peft has wrapped."""
    return hasattr(model, "get_base_model")


def base_of(model: Any) -> Any:
    """The model itself, with the adapter's layers in it if it has an adapter."""
    return model.get_base_model() if has_adapter(model) else model
