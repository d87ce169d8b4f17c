"""How the blocks of a kernel are launched: apart from `layout`, whose text other kernels' recorded tables rest on."""

from dataclasses import dataclass

from tilescout.spaces.gemm_streamk_sm90.layout import SharingShape


@dataclass(frozen=True)
class LaunchedShape(SharingShape):
    """The compile-time parameters of one kernel: also how its blocks are launched.

    Attributes
    ----------
    pairs
        Whether blocks are launched two by two, as clusters that share nothing. Each pair is on two multiprocessors next
        to one another, which ask the L2 for the same rows at the same time.
    """

    pairs: bool

    @property
    def together(self) -> int:
        """Blocks that are launched together, beside those of a cluster that shares loads."""
        return 2 if self.pairs else 1
