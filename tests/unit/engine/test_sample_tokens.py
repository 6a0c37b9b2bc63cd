"""Choosing tokens: distribution, temperature, top-p, and independence of rows."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from training.engine.sampling.sample_tokens import sample_tokens, uniforms


def same(value: float, count: int) -> npt.NDArray[np.float32]:
    return np.full(count, value, dtype=np.float32)


def grid(logits: list[float], *, temperature: float = 1.0, top_p: float = 1.0, points: int = 10_000) -> list[float]:
    """The share of each token when the uniform number runs evenly over [0, 1)."""
    rows = torch.tensor(logits).expand(points, -1)
    even = ((np.arange(points) + 0.5) / points).astype(np.float32)
    ids, _ = sample_tokens(rows, same(temperature, points), same(top_p, points), even)
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


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    for temperature, top_p in ((0.0, 1.0), (0.3, 0.5), (1.0, 1.0)):
        _, logprobs = sample_tokens(logits, same(temperature, 5), same(top_p, 5), same(0.5, 5))
        assert torch.equal(logprobs, logits.log_softmax(-1))


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(6, 1030, generator=torch.Generator().manual_seed(1))
    temperature = np.array([1.0, 0.0, 0.7, 1.0, 1.0, 2.0], dtype=np.float32)
    top_p = np.array([1.0, 1.0, 0.9, 0.5, 1.0, 1.0], dtype=np.float32)
    uniform = np.linspace(0.0, 0.99, 6, dtype=np.float32)
    together, _ = sample_tokens(logits, temperature, top_p, uniform)
    alone = [sample_tokens(logits[[i]], temperature[[i]], top_p[[i]], uniform[[i]])[0] for i in range(6)]
    assert torch.equal(together, torch.cat(alone))


def test_the_largest_uniform_number_gives_a_token_that_is_possible() -> None:
    for size in (3, 1030, 50_000):
        logits = torch.randn(1, size, generator=torch.Generator().manual_seed(size))
        logits[:, -2:] = -1e9
        ids, _ = sample_tokens(logits, same(1.0, 1), same(1.0, 1), same(1 - 2.0**-23, 1))
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
