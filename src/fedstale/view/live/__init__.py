"""`fedstale ui`: a live page over stores of runs, read-only and for this machine alone."""
