"""The engine's parts, in the process of the tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """The engine runs with one thread: several cut matrix products into parts of other sizes."""
    torch.set_num_threads(1)
