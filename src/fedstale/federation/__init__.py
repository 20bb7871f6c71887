"""A real federation on Flower: the same strategies, with a server that keeps its memory through crashes.

    client.py      an nn.Module and a data loader as a Flower ClientApp
    server.py      a ready ServerApp, and a Flower strategy object
    rounds.py      the round loop, over anything that can carry messages (links.py)
    validation.py  what a reply must be before it touches state
    ledger.py      state on disk, one atomic commit a round
    roster.py      who belongs to the federation, by public key
    launcher.py    `fedstale federation init | up | join | run | status | down`

Only grid.py, server.py and client.py import flwr, and only keys.py imports cryptography.
"""
