"""`python -m fedstale`, and the command `fedstale`."""

import sys


def main() -> None:
    """The command line; an interrupt while it is still loading ends it without a traceback."""
    try:
        from fedstale.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
