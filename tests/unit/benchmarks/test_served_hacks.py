"""Which hacks learning from served answers finds once the rules against them are gone."""

from statistics import fmean

import pytest

from benchmarks.learning.served_hacks import ALL, MUTATIONS, Rules, figures

_CONTACTS, _WORLDS = 9_600, 3
_CLEAREST = [MUTATIONS["failed sessions left out, no forecast"], MUTATIONS["silence counts 0.5"]]
"""Those that so few worlds show. What leaving out failures does alone takes ten."""


def _rise(rules: Rules, hack: str) -> float:
    return fmean(figures(seed, _CONTACTS, rules)[hack] for seed in range(_WORLDS))


@pytest.mark.parametrize(("rules", "hack"), _CLEAREST)
def test_a_hack_spreads_without_its_rules(rules: Rules, hack: str) -> None:
    assert _rise(rules, hack) >= 0.03


@pytest.mark.parametrize("hack", sorted({hack for _, hack in _CLEAREST if hack}))
def test_no_hack_spreads_with_all_rules(hack: str) -> None:
    assert _rise(ALL, hack) < 0.02
