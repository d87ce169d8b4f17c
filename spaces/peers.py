"""Peers: kernels that others choose for a problem, which race beside those of a search and are no part of it."""

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.plugins import load
from tilescout.spaces.templates import KernelTemplate

# The template of each, as module:attribute; its default configuration is the peer.
_PEERS = {"triton": "tilescout.spaces.inductor.template:TEMPLATE"}


def peer_names() -> list[str]:
    """The known peers."""
    return [*_PEERS]


def find_peer(name: str) -> KernelTemplate:
    """The template whose default configuration is the peer of this name.

    Raises
    ------
    SpaceError
        If there is none.
    """
    if name not in _PEERS:
        raise SpaceError(f"unknown peer {name!r}, known are {', '.join(_PEERS)}")
    template: KernelTemplate = load(_PEERS[name], SpaceError)
    return template
