"""The engine that trains clients on a Ray cluster."""
