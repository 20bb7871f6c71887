"""The engine that trains many clients and runs as stacked matrices."""
