"""`python -m fedstale`, and the command `fedstale`."""

import signal
import sys


def main() -> None:
    """The command line; an interrupt ends it with code 130, also while it is still loading."""
    try:
        for number in signal.Signals:  # by name: Windows has no SIGHUP
            if (
                number.name in ("SIGTERM", "SIGHUP") and signal.getsignal(number) is signal.SIG_DFL
            ):  # not under nohup
                signal.signal(number, signal.default_int_handler)  # as Ctrl-C
        from fedstale.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
