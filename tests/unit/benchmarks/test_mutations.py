"""Every mutation fits the code of today. Whether its test notices it takes minutes: benchmarks.durability.mutations."""

from benchmarks.durability.mutations import MUTATIONS, misfit
from benchmarks.frozen_code import ROOT


def test_every_guard_is_still_in_the_code() -> None:
    assert [wrong for mutation in MUTATIONS if (wrong := misfit(mutation, ROOT))] == []
