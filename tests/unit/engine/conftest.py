"""The engine's parts, in the process of the tests."""

import pytest
import torch

from training.engine.model_classes import import_model_classes

import_model_classes()  # as the engine does: without the compiler, whose import takes seconds


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As the engine runs: with several threads matrix products are cut into parts of other sizes."""
    torch.set_num_threads(1)
