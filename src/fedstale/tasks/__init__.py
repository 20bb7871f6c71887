"""Model, data and loss of every client. Only the quadratic works without torch."""
