"""The engine's parts, in the process of the tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As the engine runs: with several threads matrix products are cut into parts of other sizes."""
    torch.set_num_threads(1)
