"""A real federation on Flower: the same strategies as in a simulation, with a server that survives crashes.

    settings.py  federation.toml            protocol/  orders, replies, and how they travel
    state/       what the server remembers  server/    the round loop
    client/      what a client does         ops/       keys, processes and runs for `fedstale federation`

Apps import from `fedstale.flower`. What is private of flwr is in adapter.py only; cryptography is imported by
ops/keys.py only.
"""
