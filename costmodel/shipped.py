"""The files of models and calibrations that come with the package."""

from importlib.resources import files
from pathlib import Path

from tilescout.spaces.texts import file_name


def shipped_folder() -> Path:
    """The folder that they are in."""
    return Path(str(files("tilescout.costmodel").joinpath("pretrained")))


def shipped_file(of: str, device: str, ending: str) -> Path | None:
    """The file of something on a device, with an ending such as ``.npz``; None if there is none."""
    path = shipped_folder() / f"{file_name(f'{of}-{device}')}{ending}"
    return path if path.is_file() else None
