"""Bounds of settings that other packages need, too, without pydantic, whose import takes longer than a command."""

MOST_OVER = 1000
"""Most evaluations whose gain may be estimated."""
