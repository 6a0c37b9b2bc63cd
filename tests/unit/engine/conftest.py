"""The engine's process never imports art, but a test that compares with it does, into the process of all tests."""

import sys

import pytest
import torch

from training.engine.model_classes import import_model_classes

import_model_classes()  # as the engine does: without the compiler, whose import takes seconds

from transformers import masking_utils  # noqa: E402


@pytest.fixture(autouse=True)
def _transformers_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import art` replaces a function of transformers by one for another version: every forward pass then fails."""
    patches = sys.modules.get("art.transformers.patches")
    if patches is not None:
        monkeypatch.setattr(masking_utils, "_preprocess_mask_arguments", patches._preprocess_mask_arguments)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As the engine runs: with several threads matrix products are cut into parts of other sizes."""
    torch.set_num_threads(1)
