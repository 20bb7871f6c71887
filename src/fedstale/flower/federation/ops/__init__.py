"""What the operator of a federation does, for `fedstale federation`.

keys.py makes certificates and keys, launcher.py starts the link and the clients as processes (processes.py) that
keeper.py starts again when they end, control.py talks to the SuperLink, runner.py sees training through to its
last round.
"""
