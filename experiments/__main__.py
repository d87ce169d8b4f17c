"""The command line ``tilescout``; ``python -m tilescout.experiments`` is the same."""

import os
import signal
import sys


def main() -> None:
    """Run the command line of the process. Ctrl-C while it is imported, or ends, shows no traceback."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # `nohup` and the like have it ignored
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tilescout.experiments.commands import standing

    if (code := standing.run(sys.argv, heeded)) is not None:
        sys.exit(code)
    from tilescout.experiments.commands import cli

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    except SystemExit as end:
        if not end.code:
            standing.wake_for_next(sys.argv)
        if heeded:  # what is left is the end of Python, which would show a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[
            0
        ]  # ``python -m`` puts the working directory there: a file in it would be run in place of a module
    main()
