"""Flower's SuperLink behind our gate: `python -m fedstale.federation.ops.superlink DIR --host … --port …`.

DIR is the federation's folder; the other arguments are those of `flower-superlink`.
"""

import logging
import sys
from pathlib import Path

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink

from fedstale.federation.ops.gate import Gate, control_token


def main() -> None:
    """Run the link; the gate is the outermost middleware of its app (pinned version: an extension's place)."""
    gate = extensions.Middleware(Gate, token=control_token(Path(sys.argv.pop(1))))
    extensions.get_middleware = lambda: (gate,)
    logging.getLogger("uvicorn.access").addFilter(lambda record: False)  # a line per poll of each client
    flower_superlink()


if __name__ == "__main__":
    main()
