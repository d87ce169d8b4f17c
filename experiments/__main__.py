"""``python -m tilescout.experiments`` is the command line ``tilescout``."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[
            0
        ]  # ``python -m`` puts the working directory there: a file in it would be run in place of a module

    from tilescout.experiments.commands.cli import main

    main()
