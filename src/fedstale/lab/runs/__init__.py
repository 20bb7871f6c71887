"""The store of runs, and questions to it."""
