"""Readers of the search spaces' data sets in their published formats, from a path."""
