"""What travels between server and clients.

link.py is the network that the round loop needs, grid.py is Flower's; exchange.py sends a round's orders and
collects the replies, validation.py checks each reply, messages.py packs both into Flower records.
"""
