"""Writes values in tests/golden again, after a change of behaviour that is meant: python tests/record.py traces"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from places import TESTS

MODULES = {
    "surface": "test_documented_surface",
    "traces": "test_golden_traces",
    "weights": "test_golden_weights",
}

if __name__ == "__main__":
    sys.path[:0] = [str(TESTS / "fast"), str(TESTS / "processes")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=MODULES)
    import_module(MODULES[parser.parse_args().what]).record()
