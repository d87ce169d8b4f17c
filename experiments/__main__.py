"""``python -m tilescout.experiments`` is the command line ``tilescout``."""

from tilescout.experiments.commands.cli import main

if __name__ == "__main__":
    main()
