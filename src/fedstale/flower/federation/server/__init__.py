"""The server: rounds.py is the round loop, close.py closes a round, diagnostics.py reports on it.

app.py makes a Flower ServerApp of it.
"""
