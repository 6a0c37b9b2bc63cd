"""The defaults of a run, given its base model."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.bases.defaults import (
    TINY_BASE,
    BaseModelFacts,
    defaults_of,
    demonstrations,
    factor_from_usual,
    usual_rate,
)
from learnloop_service.training.types import RunConfig, WarmStartConfig

LORA = BaseModelFacts("qwen", 1_540_000_000, "lora", "cuda")


def _values(base: BaseModelFacts) -> dict[str, float]:
    return {path: default.value for path, default in defaults_of(base).items()}


@pytest.mark.parametrize(
    "base", [BaseModelFacts(TINY_BASE), BaseModelFacts(TINY_BASE, 1_080_000), BaseModelFacts("OpenPipe/Qwen3-14B")]
)
def test_the_tiny_base_and_unknown_ones_have_the_defaults_of_a_run_config(base: BaseModelFacts) -> None:
    config = RunConfig()
    expected = {f"evaluation.{name}": value for name, value in asdict(config.evaluation).items()}
    for name in ("seed", "baseline_width", "best"):  # they do not follow from the base, or are off
        del expected[f"evaluation.{name}"]
    names = ("iterations", "groups_per_iteration", "rollouts_per_group", "learning_rate", "warmup_iterations")
    expected |= {name: getattr(config, name) for name in (*names, "replace_groups", "concurrency")}
    assert _values(base) == expected | {"warm_start.learning_rate": WarmStartConfig(iterations=1).learning_rate}


def test_a_lora_of_the_measured_size_has_the_settings_that_were_measured() -> None:
    assert _values(LORA) == {
        "iterations": 45,
        "groups_per_iteration": 16,
        "rollouts_per_group": 8,
        "replace_groups": True,
        "learning_rate": 2e-4,
        "warmup_iterations": 3,
        "concurrency": 256,
        "evaluation.every": 10,
        "evaluation.scenarios": 128,
        "evaluation.samples": 1,
        "evaluation.test_scenarios": 152,
        "evaluation.baseline_width": 0.1,
        "warm_start.learning_rate": 1e-4,
    }


def test_a_run_after_demonstrations_is_shorter() -> None:
    assert defaults_of(LORA, after_demonstrations=True)["iterations"].value == 24
    assert defaults_of(replace(LORA, mode="full"), after_demonstrations=True)["iterations"].value == 30
    assert (
        defaults_of(BaseModelFacts(TINY_BASE), after_demonstrations=True)["iterations"].value == RunConfig().iterations
    )
    assert [demonstrations(available).value for available in (12, 480, 1_206)] == [12, 480, 480]


@pytest.mark.parametrize(
    ("parameters", "mode", "rate", "of_warm_start"),
    [
        (1_100_000, "full", 7e-4, 5e-4),
        (135_000_000, "full", 2e-5, 2e-4),
        (2_000_000_000, "full", 1e-5, 5e-5),
        (14_000_000_000, "full", 6e-6, 2e-5),
        (500_000_000, "lora", 3e-4, 1e-4),
        (7_600_000_000, "lora", 1e-4, 7e-5),
        (32_000_000_000, "lora", 9e-5, 5e-5),
    ],
)
def test_rates_fall_with_size(parameters: int, mode: str, rate: float, of_warm_start: float) -> None:
    values = _values(BaseModelFacts("other", parameters, "lora" if mode == "lora" else "full"))
    assert values["learning_rate"] == rate
    assert values["warm_start.learning_rate"] == of_warm_start


@given(st.integers(1, 10**13), st.integers(1, 10**13), st.sampled_from(["full", "lora"]))
def test_a_larger_base_never_has_a_higher_rate(one: int, other: int, mode: str) -> None:
    small, large = (BaseModelFacts("b", size, "lora" if mode == "lora" else "full") for size in sorted((one, other)))
    for path in ("learning_rate", "warm_start.learning_rate"):
        assert 0 < _values(large)[path] <= _values(small)[path] <= 0.1


@given(st.integers(1, 10**13), st.sampled_from(["cpu", "cuda"]), st.integers(1, 256), st.integers(2, 256))
def test_all_rollouts_of_an_iteration_are_made_together_on_a_gpu(
    parameters: int, device: str, groups: int, rollouts: int
) -> None:
    base = BaseModelFacts("b", parameters, device="cuda" if device == "cuda" else "cpu")
    concurrency = defaults_of(base, groups, rollouts)["concurrency"].value
    assert concurrency == (min(2 * groups * rollouts, 1_024) if device == "cuda" else min(groups * rollouts, 64))


def test_evaluations_are_smaller_where_a_rollout_costs_more() -> None:
    bases = (LORA, BaseModelFacts("large", 14_000_000_000, "lora", "cuda"), BaseModelFacts("slow", 135_000_000))
    sizes = [(values["evaluation.scenarios"], values["evaluation.test_scenarios"]) for values in map(_values, bases)]
    assert sizes == [(128, 152), (64, 152), (32, 64)]


def test_every_default_has_a_reason_in_whole_sentences() -> None:
    for base in (BaseModelFacts(TINY_BASE), BaseModelFacts("unknown"), LORA, BaseModelFacts("slow", 135_000_000)):
        for default in defaults_of(base).values():
            assert default.reason[0].isupper()
            assert default.reason.endswith(".")


@pytest.mark.parametrize(
    ("rate", "factor"), [(7e-4, 3), (6e-4, 3), (5e-4, None), (5e-5, None), (2e-5, 10), (1e-5, 10), (2e-4, None)]
)
def test_what_is_far_from_the_rate_of_a_known_size(rate: float, factor: float | None) -> None:
    assert factor_from_usual(rate, usual_rate(LORA), is_sized=True) == factor


@pytest.mark.parametrize(("rate", "factor"), [(7e-2, 100), (6e-2, None), (7e-6, 100), (8e-6, None)])
def test_what_is_far_from_the_rate_of_the_tiny_base(rate: float, factor: float | None) -> None:
    assert factor_from_usual(rate, usual_rate(BaseModelFacts(TINY_BASE)), is_sized=False) == factor
