"""Every mutation fits the code of today. Whether its test notices it takes minutes: benchmarks.mutations."""

from benchmarks.frozen_code import ROOT
from benchmarks.mutations import MUTATIONS, misfit


def test_every_guard_is_still_in_the_code() -> None:
    assert [wrong for each in MUTATIONS if (wrong := misfit(each, ROOT))] == []
