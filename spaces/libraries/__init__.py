"""Other projects' matrix products as search spaces: those of Quack and of CUTLASS's Operator API.

``quack`` and ``cutlass_operators`` have their knobs and rules, ``template`` the base of both. ``bare`` imports their
packages lightly. The modules that end in ``build`` or ``split`` compile their kernels.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.spaces.libraries.template import Library, LibraryGemmTemplate

__all__ = ["Library", "LibraryGemmTemplate"]

__getattr__, __dir__ = public_names(__name__, {"Library": "template", "LibraryGemmTemplate": "template"})
