"""The record of the resources that a compiled kernel occupies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """The resources that a compiled kernel occupies, read from its binary.

    Attributes
    ----------
    registers
        Registers a thread at launch.
    spill_bytes
        Stack frame plus local memory a thread, in bytes; nonzero means that registers spilled.
    shared_memory
        Bytes of shared memory a block.
    instructions
        Machine instructions of the kernel; None where they were not counted.
    """

    registers: int
    spill_bytes: int
    shared_memory: int
    instructions: int | None = None
