"""RULER finds the true order although the judge is biased, noisy and malformed, and pays once for it.

The whole comparison with ART's own is `python -m benchmarks.learning.ruler`.
"""

import pytest

from benchmarks.learning.ruler import Options, again, make_groups, ours, spearman
from tests.fakes.scripted_judge import Remembering, scripted_judge


async def test_it_ranks_as_the_truth_does_loses_no_group_and_pays_once() -> None:
    options = Options(groups=20, passes=4)
    groups, cache = make_groups(options), Remembering()
    async with scripted_judge(bias=options.bias, noise=options.noise, malformed=options.malformed) as server:
        first = await ours(groups, server, cache, options)
        repeated = await ours(again(groups), server, cache, options)
    assert first.lost == 0
    assert first.correlation >= 0.95
    assert first.requests > 20 * options.passes
    assert repeated.tokens <= 0.4 * first.tokens
    assert repeated.correlation == pytest.approx(first.correlation)


async def test_a_single_pass_keeps_the_bias() -> None:
    options = Options(groups=20, passes=1)
    async with scripted_judge(bias=options.bias) as server:
        assert (await ours(make_groups(options), server, Remembering(), options)).correlation < 0.92


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0.1, 0.2, 0.3], [1, 2, 3], 1.0),
        ([0.1, 0.2, 0.3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 2, 3], [5, 5, 5], 0.0),
        # scipy.stats.spearmanr([1, 2, 3, 4], [1, 1, 2, 3])
        ([1, 2, 3, 4], [1, 1, 2, 3], 0.9486832980505138),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], expected: float) -> None:
    assert spearman(one, other) == pytest.approx(expected)
