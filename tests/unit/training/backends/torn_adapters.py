"""Where an adapter's file can be cut."""

from tests.fakes.local_child import adapter

SIZE = len(adapter())
OFFSETS = (0, 1, 7, 8, 9, 40, SIZE - 256, SIZE - 255, SIZE - 100, SIZE - 1)
"""In the header's length, the header, right behind it, and in the tensors."""
