"""The recorded values of torchft's DiLoCo, against which outer optimizers are tested, are those of torchft."""

from __future__ import annotations

import json

import diloco
import pytest
from places import GOLDEN


def test_recorded_values_are_those_of_torchft() -> None:
    pytest.importorskip("torchft")
    for name, fragments in diloco.RECORDED.items():
        for delay, steps in json.loads((GOLDEN / name).read_text()).items():
            for found, recorded in zip(diloco.by_torchft(int(delay), fragments), steps, strict=True):
                assert found == pytest.approx(recorded, rel=0, abs=1e-6)
