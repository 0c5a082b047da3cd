"""How long a step takes: a model fitted from the execution times in a recording.

    time = constant + a * decode rows + b * prefill tokens + c * context tokens        all coefficients >= 0

A row that computes one token is a decode row; the tokens of other rows are prefill tokens. Context tokens are those
that attention reads: over all rows, the length of the sequence after the step. The fit minimises the squared relative
error, so that short decode steps count as much as long prefill steps, and is exact: with four features the non-negative
optimum is the best of the 15 plain least-squares fits whose coefficients are all >= 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from scheduler.core.plan import StepPlan

NUM_FEATURES = 4
_SINGULAR = 1e-9


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step computes, as far as its time depends on it."""

    decode_rows: int
    prefill_tokens: int
    context_tokens: int

    @property
    def features(self) -> tuple[float, float, float, float]:
        """In the order of the coefficients."""
        return 1.0, float(self.decode_rows), float(self.prefill_tokens), float(self.context_tokens)


class ShapeTracker:
    """Derives the shapes of plans from the plans alone, which must come in order."""

    def __init__(self) -> None:
        self._computed: dict[int, int] = {}

    def shape(self, plan: StepPlan) -> StepShape:
        """Of the next plan."""
        computed = self._computed
        for admission in plan.admissions:
            computed[admission.row] = admission.num_computed_tokens
        decode_rows = prefill_tokens = context_tokens = 0
        for row, count in zip(plan.rows, plan.num_tokens, strict=True):
            computed[row] += count
            context_tokens += computed[row]
            if count == 1:
                decode_rows += 1
            else:
                prefill_tokens += count
        return StepShape(decode_rows, prefill_tokens, context_tokens)


def num_swapped_blocks(plan: StepPlan) -> int:
    """Blocks that a plan copies between device and host. The model leaves their time out: it follows from a rate."""
    return len(plan.swap_out) + len(plan.swap_in)


@dataclass(frozen=True, slots=True)
class StepModel:
    """coefficients: nanoseconds per unit of each feature. median_error: of the fit, relative. num_samples: steps."""

    coefficients: tuple[float, ...]
    median_error: float
    num_samples: int

    def predict_ns(self, shape: StepShape) -> float:
        """Expected execution time."""
        return sum(map(float.__mul__, self.coefficients, shape.features))


def fit(samples: Sequence[tuple[StepShape, int]]) -> StepModel:
    """From shapes and measured nanoseconds. Raises ValueError if no step has an execution time."""
    usable = [(shape.features, float(ns)) for shape, ns in samples if ns > 0]
    if not usable:
        raise ValueError("no step of the recording has an execution time")
    scales = [max(features[i] for features, _ in usable) or 1.0 for i in range(NUM_FEATURES)]
    rows = [[feature / scale / ns for feature, scale in zip(features, scales, strict=True)] for features, ns in usable]
    # Divided by the time, every target is 1.
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(NUM_FEATURES)] for i in range(NUM_FEATURES)]
    moments = [sum(row[i] for row in rows) for i in range(NUM_FEATURES)]
    scaled = _non_negative_solution(gram, moments)
    coefficients = tuple(value / scale for value, scale in zip(scaled, scales, strict=True))
    errors = (abs(sum(map(float.__mul__, coefficients, features)) - ns) / ns for features, ns in usable)
    return StepModel(coefficients, median(errors), len(usable))


def _non_negative_solution(gram: list[list[float]], moments: list[float]) -> list[float]:
    """x >= 0 that minimises x'Gx - 2m'x, by trying every set of features that may be non-zero."""
    best, best_value = [0.0] * NUM_FEATURES, 0.0
    for size in range(1, NUM_FEATURES + 1):
        for chosen in combinations(range(NUM_FEATURES), size):
            solution = _solve([[gram[i][j] for j in chosen] for i in chosen], [moments[i] for i in chosen])
            if solution is None or min(solution) < 0:
                continue
            # At a least-squares solution x'Gx = m'x.
            value = -sum(moments[i] * x for i, x in zip(chosen, solution, strict=True))
            if value < best_value:
                best, best_value = [0.0] * NUM_FEATURES, value
                for i, x in zip(chosen, solution, strict=True):
                    best[i] = x
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivots; None if the features of the matrix depend on each other."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    limits = [_SINGULAR * matrix[i][i] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) <= limits[i]:
            return None
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
