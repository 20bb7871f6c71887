"""`fedstale report`: runs of a store → one HTML page that needs nothing else."""
