"""The step-time model finds the coefficients that made the times."""

from __future__ import annotations

import random

import pytest

from scheduler.recording.step_model import StepShape, fit


def _shapes(count: int) -> list[StepShape]:
    dice = random.Random(7)
    return [
        StepShape(dice.randint(0, 64), dice.choice((0, 0, dice.randint(2, 512))), dice.randint(1, 50_000))
        for _ in range(count)
    ]


def test_exact_times_give_exact_coefficients() -> None:
    samples = [
        (shape, 900_000 + 40_000 * shape.decode_rows + 9_000 * shape.prefill_tokens + 3 * shape.context_tokens)
        for shape in _shapes(200)
    ]
    model = fit(samples)
    assert model.coefficients == pytest.approx((900_000, 40_000, 9_000, 3), rel=1e-4)
    assert model.median_error < 1e-6
    assert model.num_samples == 200
    assert model.predict_ns(StepShape(1, 2, 3)) == pytest.approx(900_000 + 40_000 + 18_000 + 9, rel=1e-4)


def test_no_coefficient_is_negative() -> None:
    """Steps that get shorter with more context: least squares would say so, nothing real does."""
    samples = [(shape, 5_000_000 - 50 * shape.context_tokens + 1_000 * shape.decode_rows) for shape in _shapes(200)]
    model = fit(samples)
    assert min(model.coefficients) >= 0
    assert model.coefficients[3] == 0
    assert model.median_error > 0.01


def test_features_that_never_vary_do_no_harm() -> None:
    model = fit([(StepShape(8, 0, 100), 2_000_000)] * 5)
    assert model.predict_ns(StepShape(8, 0, 100)) == pytest.approx(2_000_000)
    assert all(0 <= coefficient < 1e12 for coefficient in model.coefficients)


def test_a_few_hiccups_do_not_move_the_model() -> None:
    samples = [(shape, 1_000_000 + 50_000 * shape.decode_rows) for shape in _shapes(200)]
    samples[::50] = [(shape, 40 * ns) for shape, ns in samples[::50]]
    model = fit(samples)
    assert model.predict_ns(StepShape(32, 0, 1000)) == pytest.approx(2_600_000, rel=0.05)


def test_without_times_there_is_no_model() -> None:
    with pytest.raises(ValueError, match="no step"):
        fit([(StepShape(1, 0, 1), 0)])
