"""Hints on how to go on with a study: the command line finds the newest of a kind only, Python any by its name."""

from collections.abc import Collection, Sequence

from tilescout.search.studies.study_store import newest_like


def how_to_deliver(name: str, known: Collection[str]) -> str:
    """The way to have a study delivered to MLflow, of those that are `known` in its store."""
    newest = newest_like(known, name)
    if newest == name:
        return "its `tilescout tune` command with --resume delivers it"
    return (
        f"in Python `tune` with resume={name!r} delivers it, for --resume goes on with {newest}, the newest of its kind"
    )


def how_to_finish(names: Sequence[str], known: Collection[str]) -> str:
    """The way to finish studies, of those that are `known` in their store."""
    older = sum(newest_like(known, name) != name for name in names)
    if older == len(names):
        return "finish each in Python, by `tune` with resume=NAME: --resume goes on with the newest of a kind only"
    others = ", and those that are not the newest of their kind in Python, by `tune` with resume=NAME" if older else ""
    return f"finish each by its `tilescout tune` command with --resume{others}"
