"""Search spaces: knobs, constraints, problems, devices, suites, and the templates that kernels come from.

Each name is loaded when it is first used, so that importing this package is light. Names that begin with an underscore,
and modules that are not named here, may change at any time.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.spaces.building import compile_object, element_type, import_compiler, row_major
    from tilescout.spaces.constraints import Columns, Constraint, Mask
    from tilescout.spaces.devices import DEVICES, Device, find_device
    from tilescout.spaces.errors import (
        ArtifactError,
        BuildError,
        BundleError,
        DeviceError,
        ExportError,
        ModelError,
        NoResultError,
        ProblemError,
        ResumableError,
        SamplerError,
        SpaceError,
        StoreError,
        TableError,
        TilescoutError,
    )
    from tilescout.spaces.gemm import Gemm, GemmProblem
    from tilescout.spaces.grouped import Grouped, GroupedProblem
    from tilescout.spaces.knobs import Configuration, Knob, Value
    from tilescout.spaces.named import NamedProblem
    from tilescout.spaces.problems import DTYPES, DType, Problem, Rate, Unit
    from tilescout.spaces.resources import Resources
    from tilescout.spaces.routing import Routing
    from tilescout.spaces.rowwise import Rowwise, RowwiseProblem, Softmax
    from tilescout.spaces.space import Indices, SearchSpace
    from tilescout.spaces.subspace import SubSpace, parse_restrictions, read_subspace
    from tilescout.spaces.suite import Entry, Suite, find_suite, parse_suite, suite_names, write_suite
    from tilescout.spaces.templates import Built, KernelTemplate, find_template, load_template, template_names
    from tilescout.spaces.tiling import Tiling
    from tilescout.spaces.workloads import Workload, load_workload

__all__ = [
    "DEVICES",
    "DTYPES",
    "ArtifactError",
    "BuildError",
    "Built",
    "BundleError",
    "Columns",
    "Configuration",
    "Constraint",
    "DType",
    "Device",
    "DeviceError",
    "Entry",
    "ExportError",
    "Gemm",
    "GemmProblem",
    "Grouped",
    "GroupedProblem",
    "Indices",
    "KernelTemplate",
    "Knob",
    "Mask",
    "ModelError",
    "NamedProblem",
    "NoResultError",
    "Problem",
    "ProblemError",
    "Rate",
    "Resources",
    "ResumableError",
    "Routing",
    "Rowwise",
    "RowwiseProblem",
    "SamplerError",
    "SearchSpace",
    "Softmax",
    "SpaceError",
    "StoreError",
    "SubSpace",
    "Suite",
    "TableError",
    "TilescoutError",
    "Tiling",
    "Unit",
    "Value",
    "Workload",
    "compile_object",
    "element_type",
    "find_device",
    "find_suite",
    "find_template",
    "import_compiler",
    "load_template",
    "load_workload",
    "parse_restrictions",
    "parse_suite",
    "read_subspace",
    "row_major",
    "suite_names",
    "template_names",
    "write_suite",
]

_NAMES = {
    "building": "compile_object element_type import_compiler row_major",
    "constraints": "Columns Constraint Mask",
    "devices": "DEVICES Device find_device",
    "errors": "ArtifactError BuildError BundleError DeviceError ExportError ModelError NoResultError "
    "ProblemError ResumableError SamplerError SpaceError StoreError TableError TilescoutError",
    "gemm": "Gemm GemmProblem",
    "grouped": "Grouped GroupedProblem",
    "knobs": "Configuration Knob Value",
    "named": "NamedProblem",
    "problems": "DTYPES DType Problem Rate Unit",
    "resources": "Resources",
    "routing": "Routing",
    "rowwise": "Rowwise RowwiseProblem Softmax",
    "space": "Indices SearchSpace",
    "subspace": "SubSpace parse_restrictions read_subspace",
    "suite": "Entry Suite find_suite parse_suite suite_names write_suite",
    "templates": "Built KernelTemplate find_template load_template template_names",
    "tiling": "Tiling",
    "workloads": "Workload load_workload",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__getattr__, __dir__ = public_names(__name__, _MODULES)
