"""Static facts of the GPUs that kernels are tuned for."""

from dataclasses import dataclass
from typing import Any

from tilescout.spaces.errors import DeviceError
from tilescout.spaces.problems import DType


@dataclass(frozen=True)
class Device:
    """Facts of a GPU that do not change between runs.

    Attributes
    ----------
    name
        The short name used on the command line and in tables.
    product
        How ``torch.cuda.get_device_name`` and ``nvidia-smi`` call it.
    arch
        The compiler's target.
    sms
        Streaming multiprocessors.
    shared_memory
        Bytes of shared memory that one block can have.
    l2
        Bytes of L2 cache.
    bandwidth
        Bytes a second of device memory, by the vendor's datasheet.
    peak
        Dense 16-bit matrix operations a second with fp32 accumulation, by the vendor's datasheet.
    """

    name: str
    product: str
    arch: str
    sms: int
    shared_memory: int
    l2: int
    bandwidth: float
    peak: float

    def peak_of(self, element: DType) -> float:
        """Dense matrix operations a second on elements of a type: twice as many of half the size."""
        return self.peak * 2 / element.bytes

    def move_us(self, moved: Any) -> Any:
        """Time in µs to move bytes, a number or a column of them, through device memory at its full bandwidth."""
        return moved / self.bandwidth * 1e6


RTX_PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"

# Sources: NVIDIA's H100, H200 and B200 datasheets; compute capabilities 9.0, 10.0 and 12.0 in the CUDA C++ programming
# guide (227 KiB of shared memory a block, and 99 KiB); SM and L2 figures as the driver reports them; of an RTX PRO 6000
# as in NVIDIA's white paper on the architecture of RTX PRO Blackwell GPUs, 2025, which also has its rates.
DEVICES = {
    device.name: device
    for device in (
        Device("h100", "NVIDIA H100 80GB HBM3", "sm_90a", 132, 232_448, 50 * 2**20, 3.35e12, 989e12),
        Device("h100-pcie", "NVIDIA H100 PCIe", "sm_90a", 114, 232_448, 50 * 2**20, 2.0e12, 756e12),
        Device("h200", "NVIDIA H200", "sm_90a", 132, 232_448, 60 * 2**20, 4.8e12, 989e12),
        Device("b200", "NVIDIA B200", "sm_100a", 148, 232_448, 126 * 2**20, 8.0e12, 2250e12),
        Device("rtx-pro-6000", RTX_PRO_6000, "sm_120a", 188, 101_376, 128 * 2**20, 1.792e12, 503.8e12),
    )
}


def find_device(name: str) -> Device:
    """The device with this short name or product name.

    Raises
    ------
    DeviceError
        If no known device is called so.
    """
    for device in DEVICES.values():
        if name in (device.name, device.product):
            return device
    raise DeviceError(f"unknown device {name!r}, known are {', '.join(DEVICES)}")


def siblings(name: str) -> list[str]:
    """The short names of the other known devices of a device's architecture, of the most alike in size first.

    Code of one runs on the others. None where the device is unknown.
    """
    own = DEVICES.get(name)
    if own is None:
        return []
    others = [each for each in DEVICES.values() if each.arch == own.arch and each is not own]
    return [each.name for each in sorted(others, key=lambda each: abs(each.sms - own.sms))]
