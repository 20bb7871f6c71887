"""Differential privacy: what a run has told about each client."""
