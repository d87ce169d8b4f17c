"""The documented example with a kernel that the host can run."""

from collections.abc import Mapping
from pathlib import Path

from own_kernel import RmsNorm  # type: ignore[import-not-found]

from rows_on_host import build_rows  # type: ignore[import-not-found]
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import Built


class HostRmsNorm(RmsNorm):  # type: ignore[misc]
    package = "rows_on_host"
    sources = ("rows.c",)
    archs = ("host",)

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        return build_rows("RMS_NORM", "nothing", path)
