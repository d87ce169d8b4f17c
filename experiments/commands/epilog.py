"""The end of a help text; the command line itself needs no more than this of its commands."""


def examples(*lines: str) -> str:
    """The end of a help text: command lines to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
