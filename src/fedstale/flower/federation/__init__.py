"""A real federation on Flower: the same strategies as in a simulation, with a server that survives crashes.

    settings.py  federation.toml            protocol/  orders, replies, and how they travel
    state/       what the server remembers  server/    the round loop
    client/      what a client does         ops/       keys, processes and runs for `fedstale federation`

Apps import from `fedstale.flower`. flwr is imported by protocol/grid.py, protocol/messages.py and the two app.py
files only, cryptography by ops/keys.py only.
"""
