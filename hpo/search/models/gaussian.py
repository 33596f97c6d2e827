"""Gaussian process over rows of numbers, small enough to be fitted between two evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# Each step of the search costs a Cholesky factorization; later fits continue from the parameters of earlier fits.
_MOST_STEPS = 12
_ROOT5 = math.sqrt(5.0)
_LEAST_NOISE, _LARGEST_NOISE = math.log(1e-6), math.log(1.0)
"""Bounds of the noise's log variance; goals have variance 1."""
_SHORTEST, _LONGEST = math.log(0.03), math.log(30.0)
"""Bounds of the log lengths; numbers have range 1."""


class Gaussian:
    """Gaussian process with a Matérn 5/2 kernel and a constant mean.

    The kernel has a length for each parameter (Rasmussen and Williams 2006, section 4.2). Lengths, scale and noise are
    at the maximum of their posterior; lengths have the log-normal prior of Hvarfner et al. 2024 (arXiv:2402.02229),
    whose mode grows with the square root of the number of parameters.

    ``rows``: configurations, n × columns; ``goals``: values to predict, n, about standard normal; ``columns``: first
    column and number of columns of each parameter; ``start``: ``parameters`` of an earlier fit, None for the mode of
    the prior, from which the search begins where ``fit`` is true.
    """

    def __init__(
        self,
        rows: Any,
        goals: Any,
        columns: Sequence[tuple[int, int]],
        start: Any | None = None,
        *,
        fit: bool = True,
    ) -> None:
        import numpy
        from scipy.linalg import cho_factor, cho_solve
        from scipy.optimize import minimize

        self._rows = rows
        self._spread = numpy.repeat(numpy.arange(len(columns)), [width for _, width in columns])
        self._mean = float(goals.mean())
        goals = goals - self._mean
        size, count = len(columns), len(rows)
        centre = 0.5 * math.log(size) + math.log(0.5)
        flat = _squared_distances(rows, columns).reshape(size, -1)
        eye = numpy.arange(count)

        def kernel(parameters: Any) -> tuple[Any, Any, Any, Any]:
            weights = numpy.exp(-2.0 * parameters[:size])
            distance = _ROOT5 * numpy.sqrt(numpy.maximum(weights @ flat, 0.0)).reshape(count, count)
            fall = numpy.exp(-distance)
            return weights, distance, fall, (1.0 + distance + distance**2 / 3.0) * fall

        def loss(parameters: Any) -> tuple[float, Any]:
            weights, distance, fall, shape = kernel(parameters)
            scale, noise = math.exp(parameters[size]), math.exp(parameters[size + 1])
            matrix = scale * shape
            matrix[eye, eye] += noise
            try:
                factor = cho_factor(matrix, lower=True, check_finite=False)
            except numpy.linalg.LinAlgError:
                return 1e10, numpy.zeros_like(parameters)
            alpha = cho_solve(factor, goals, check_finite=False)
            inverse = cho_solve(factor, numpy.eye(count), check_finite=False)
            inner = inverse - numpy.outer(alpha, alpha)
            value = 0.5 * goals @ alpha + numpy.log(numpy.diag(factor[0])).sum()
            gradient = numpy.empty_like(parameters)
            # d shape / d log length k = 5/3 (1 + distance) exp(-distance) square_k / length_k^2
            slope = (inner * ((5.0 / 3.0) * (1.0 + distance) * fall)).reshape(-1)
            gradient[:size] = 0.5 * scale * weights * (flat @ slope)
            gradient[size] = 0.5 * scale * (inner * shape).sum()
            gradient[size + 1] = 0.5 * noise * numpy.trace(inner)
            deviation = parameters - prior
            return float(value + 0.5 * (deviation**2 * precision).sum()), gradient + deviation * precision

        prior = numpy.array([centre] * size + [0.0, math.log(1e-4)])
        precision = numpy.array([1.0] * size + [1.0, 0.25])
        begin = prior if start is None or len(start) != len(prior) else start
        bounds = [(_SHORTEST, _LONGEST)] * size + [
            (math.log(0.05), math.log(50.0)),
            (_LEAST_NOISE, _LARGEST_NOISE),
        ]
        if fit:
            most = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS}
            begin = minimize(loss, begin, jac=True, bounds=bounds, method="L-BFGS-B", options=most).x
        self.parameters = begin
        _, _, _, shape = kernel(begin)
        self._scale, noise = math.exp(begin[size]), math.exp(begin[size + 1])
        self._factor = _factor(self._scale * shape, noise)
        self._alpha = cho_solve(self._factor, goals, check_finite=False)
        share = numpy.array([1.0 / min(2, width) for _, width in columns])
        self._weights = numpy.sqrt((numpy.exp(-2.0 * begin[:size]) * share)[self._spread])
        self._scaled = rows * self._weights
        self._norms = (self._scaled**2).sum(axis=1)

    def __call__(self, rows: Any) -> tuple[Any, Any]:
        """Mean and standard deviation of the prediction for each row."""
        import numpy
        from scipy.linalg import solve_triangular

        scaled = rows * self._weights
        squares = (scaled**2).sum(axis=1)[:, None] + self._norms[None, :] - 2.0 * scaled @ self._scaled.T
        distance = _ROOT5 * numpy.sqrt(numpy.maximum(squares, 0.0))
        cross = self._scale * (1.0 + distance + distance**2 / 3.0) * numpy.exp(-distance)
        mean = self._mean + cross @ self._alpha
        half = solve_triangular(self._factor[0], cross.T, lower=True, check_finite=False)
        return mean, numpy.sqrt(numpy.maximum(self._scale - (half**2).sum(axis=0), 1e-12))


def _squared_distances(rows: Any, columns: Sequence[tuple[int, int]]) -> Any:
    """Squared distances between all rows, for each parameter, whose first column and width ``columns`` gives."""
    import numpy

    squares = numpy.empty((len(columns), len(rows), len(rows)))
    for index, (first, width) in enumerate(columns):
        part = rows[:, first : first + width]
        squares[index] = ((part[:, None, :] - part[None, :, :]) ** 2).sum(axis=2) / min(2, width)
    return squares


def _factor(matrix: Any, noise: float) -> Any:
    """Cholesky factor of ``matrix`` with ``noise`` on its diagonal, and with more where it is not positive definite."""
    import numpy
    from scipy.linalg import cho_factor

    eye = numpy.arange(len(matrix))
    matrix[eye, eye] += noise
    while True:
        try:
            return cho_factor(matrix, lower=True, check_finite=False)
        except numpy.linalg.LinAlgError:
            noise *= 10.0
            matrix[eye, eye] += noise
