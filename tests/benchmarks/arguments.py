"""Options that benchmarks have in common."""

from __future__ import annotations

import argparse


def parser_of(text: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with ``--quick``; ``text``: the benchmark's docstring; ``quick``: what the option makes of it."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser
