"""Detects what peft has put into a model without importing peft, whose import is slow and needed only for adapters, and
defines the width of adapter columns in joined matrices."""

from typing import Any

COLUMN_MULTIPLE = 64
"""Alignment of adapter columns, which makes rows of the joined matrices begin at multiples of 128 bytes."""


def is_adapted(module: Any) -> bool:
    """Whether the module is a layer with LoRA adapters."""
    return hasattr(module, "lora_A")


def has_adapter(model: Any) -> bool:
    """Whether the model is one that peft has wrapped."""
    return hasattr(model, "get_base_model")


def base_of(model: Any) -> Any:
    """Return the model itself, without peft's wrapper but with the adapter's layers in it."""
    return model.get_base_model() if has_adapter(model) else model
