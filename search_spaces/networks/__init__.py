"""Networks of the search spaces. Importing these modules imports torch."""
