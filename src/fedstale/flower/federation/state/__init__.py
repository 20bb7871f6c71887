"""What the server remembers, and how it survives a crash.

server_state.py is the state, ledger.py commits it to disk once a round, manifest.py says what was committed,
roster.py lists the clients, and resize.py changes a state when clients join or leave.
"""
