"""Networks that the search spaces build. Importing these modules imports torch."""
