"""Readers of the data sets that the search spaces train on: real formats, given by path."""
