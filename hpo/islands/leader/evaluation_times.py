"""How far ahead of its evaluations a leader claims individuals."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_AHEAD = 64


@dataclass
class EvaluationTimes:
    """Running means that decide how many individuals to claim ahead. Seconds."""

    cycle_s: float | None = None
    answer_s: float | None = None

    @staticmethod
    def _mean(old: float | None, new: float) -> float:
        return new if old is None else 0.8 * old + 0.2 * new

    def evaluated(self, seconds: float) -> None:
        self.cycle_s = self._mean(self.cycle_s, seconds)

    def answered(self, seconds: float) -> None:
        self.answer_s = self._mean(self.answer_s, seconds)

    @property
    def ahead(self) -> int:
        """Individuals to hold beyond the running one: none while an answer costs under a hundredth of an
        evaluation, since what is bred later knows more; else enough to bridge two answers."""
        if self.cycle_s is None or self.answer_s is None or self.answer_s < 0.01 * self.cycle_s:
            return 0
        return min(MOST_AHEAD, math.ceil(2.0 * self.answer_s / max(self.cycle_s, 1e-6)))
