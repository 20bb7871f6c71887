"""The engine that trains clients in a pool of processes."""
