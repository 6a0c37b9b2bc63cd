"""Choosing tokens: distribution, temperature, cuts, and independence of rows."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from learnloop_service.training.engine.sampling.sample_tokens import sample_tokens, uniforms


def same(value: float, count: int) -> npt.NDArray[np.float32]:
    return np.full(count, value, dtype=np.float32)


def no_limit(count: int) -> npt.NDArray[np.int64]:
    return np.zeros(count, dtype=np.int64)


def grid(
    logits: list[float],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    points: int = 10_000,
) -> list[float]:
    """The share of each token when the uniform number runs evenly over [0, 1)."""
    rows = torch.tensor(logits).expand(points, -1)
    even = ((np.arange(points) + 0.5) / points).astype(np.float32)
    cuts = same(top_p, points), no_limit(points) + top_k, same(min_p, points)
    ids, _ = sample_tokens(rows, same(temperature, points), *cuts, even)
    return [float(share) for share in torch.bincount(ids, minlength=len(logits)) / points]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    logits = [0.0, 2.0, -1.0, 1.0]
    assert grid(logits) == pytest.approx(torch.tensor(logits).softmax(-1).tolist(), abs=2e-4)
    halved = (torch.tensor(logits) / 0.5).softmax(-1).tolist()
    assert grid(logits, temperature=0.5) == pytest.approx(halved, abs=2e-4)


def test_temperature_zero_takes_the_most_likely() -> None:
    assert grid([0.0, 2.0, -1.0, 1.9], temperature=0.0) == [0, 1, 0, 0]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.2, 0.5, 0.1, 0.2]).log().tolist()
    assert grid(logits, top_p=0.6) == pytest.approx([2 / 7, 5 / 7, 0, 0], abs=2e-4)
    assert grid(logits, top_p=0.9) == pytest.approx([2 / 9, 5 / 9, 0, 2 / 9], abs=2e-4)
    assert grid(logits, top_p=1e-9) == [0, 1, 0, 0]


def test_top_k_keeps_the_most_likely() -> None:
    logits = torch.tensor([0.2, 0.5, 0.1, 0.2]).log().tolist()
    assert grid(logits, top_k=1) == [0, 1, 0, 0]
    assert grid(logits, top_k=2) == pytest.approx([2 / 7, 5 / 7, 0, 0], abs=2e-4)  # of equals the first
    assert grid(logits, top_k=3) == pytest.approx([2 / 9, 5 / 9, 0, 2 / 9], abs=2e-4)
    assert grid(logits, top_k=9) == pytest.approx([0.2, 0.5, 0.1, 0.2], abs=2e-4)


def test_min_p_keeps_what_is_nearly_as_likely_as_the_most_likely() -> None:
    logits = torch.tensor([0.2, 0.5, 0.1, 0.2]).log().tolist()
    assert grid(logits, min_p=0.3) == pytest.approx([2 / 9, 5 / 9, 0, 2 / 9], abs=2e-4)
    assert grid(logits, min_p=0.5) == [0, 1, 0, 0]
    assert grid([1.0, 1.0], min_p=1.0) == pytest.approx([0.5, 0.5])
    sharp = grid(logits, temperature=0.5, min_p=0.17)  # of the probabilities at that temperature: 4/34, 25/34, ...
    assert sharp == [0, 1, 0, 0]


def test_top_p_is_of_what_the_other_cuts_leave() -> None:
    logits = torch.tensor([0.2, 0.5, 0.1, 0.2]).log().tolist()
    assert grid(logits, top_k=2, top_p=0.7) == [0, 1, 0, 0]  # 5/7 reach it; 0.5 alone would not
    assert grid(logits, top_k=2, top_p=0.8) == pytest.approx([2 / 7, 5 / 7, 0, 0], abs=2e-4)


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    for temperature, top_p, top_k, min_p in ((0.0, 1.0, 0, 0.0), (0.3, 0.5, 3, 0.1), (1.0, 1.0, 0, 0.0)):
        cuts = same(top_p, 5), no_limit(5) + top_k, same(min_p, 5)
        _, logprobs = sample_tokens(logits, same(temperature, 5), *cuts, same(0.5, 5))
        assert torch.equal(logprobs, logits.log_softmax(-1))


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(6, 1030, generator=torch.Generator().manual_seed(1))
    temperature = np.array([1.0, 0.0, 0.7, 1.0, 1.0, 2.0], dtype=np.float32)
    top_p = np.array([1.0, 1.0, 0.9, 0.5, 1.0, 1.0], dtype=np.float32)
    top_k = np.array([0, 0, 40, 0, 5, 0], dtype=np.int64)
    min_p = np.array([0.0, 0.1, 0.0, 0.02, 0.0, 0.0], dtype=np.float32)
    uniform = np.linspace(0.0, 0.99, 6, dtype=np.float32)

    def choose(rows: list[int]) -> torch.Tensor:
        cuts = top_p[rows], top_k[rows], min_p[rows]
        return sample_tokens(logits[rows], temperature[rows], *cuts, uniform[rows])[0]

    together, alone = choose(list(range(6))), [choose([row]) for row in range(6)]
    assert torch.equal(together, torch.cat(alone))


def test_the_largest_uniform_number_gives_a_token_that_is_possible() -> None:
    for size in (3, 1030, 50_000):
        logits = torch.randn(1, size, generator=torch.Generator().manual_seed(size))
        logits[:, -2:] = -1e9
        ids, _ = sample_tokens(logits, same(1.0, 1), same(1.0, 1), no_limit(1), same(0.0, 1), same(1 - 2.0**-23, 1))
        assert int(ids) < size - 2


def test_uniforms_are_even_and_differ_by_seed_and_count() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 100)
    counts = np.tile(np.arange(100, dtype=np.uint64), 200)
    numbers = uniforms(seeds, counts)
    assert numbers.dtype == np.float32
    assert 0.0 <= numbers.min() <= numbers.max() < 1.0
    histogram, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert abs(histogram - 1000).max() < 130  # four standard deviations
    table = numbers.reshape(200, 100)
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.03
    assert np.array_equal(uniforms(seeds[150:151], counts[150:151]), numbers[150:151])
