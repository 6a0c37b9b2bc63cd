"""Undoes ART's patch of Transformers.

The engine's process never imports art, but processes of the tests do, and `import art` replaces a function with one for
another version, which breaks the forward pass of some models.
"""

import sys
from typing import Any


def undo() -> None:
    """Put the function back, if ART was imported."""
    masks: Any = sys.modules.get("transformers.masking_utils")
    patches: Any = sys.modules.get("art.transformers.patches")
    if masks and patches:
        masks._preprocess_mask_arguments = patches._preprocess_mask_arguments
