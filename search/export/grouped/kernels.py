"""The kernels of grouped products of loaded bundles, and the choice of the one that runs on given tensors."""

from typing import TYPE_CHECKING

from tilescout.search.export.bundle import Bundle
from tilescout.search.export.grouped.dispatch import GroupedDispatch, grouped_family
from tilescout.search.export.loaded_kernels import ALIGNMENT, Ranged, bundle_of
from tilescout.spaces.errors import BundleError
from tilescout.spaces.gated import GatedProblem, swiglu
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.scaled import ScaledProblem, scaled

if TYPE_CHECKING:
    import torch


class GroupedFamily(Ranged):
    """The ranges of tokens of a grouped product. A call with tensors runs the kernel that was decided.

    What is in no range of our kernels, and tensors that they can't take, go to ``torch._grouped_mm``, and SwiGLU or the
    scale to torch. The values of the offsets stay on the device: where they decrease or lie beyond the rows, our
    kernels find empty groups.
    """

    def __init__(self, bundle: Bundle, dispatch: GroupedDispatch) -> None:
        import torch

        super().__init__(bundle, dispatch.ranges)
        self.problem = problem = dispatch.problem  #: its tokens stand for any
        self.width, self.out = problem.width, getattr(torch, problem.result.torch_name)
        self._dtype = getattr(torch, problem.element.torch_name)
        self._scaled = isinstance(problem, ScaledProblem)
        self._b_shape = (problem.experts, problem.n, problem.k)

    def __call__(
        self, a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor", scale: "torch.Tensor | None" = None
    ) -> "torch.Tensor":
        """Compute the product of A [tokens, k], B [experts, n, k] and the ends of the groups [experts].

        The rows of a product that is decided with a scale are multiplied by theirs [tokens].
        """
        import torch

        tokens = a.shape[0]
        launch = self.lookup(a.device).find(tokens) if tokens else None
        if launch is None or not self._takes(a, b, ends) or not self._scales_by(scale, a):
            return run_library(a, b, ends, self.problem, scale)
        inputs = (a, b, ends) if scale is None else (a, b, ends, scale)
        output = a.new_empty((tokens, self.width), dtype=self.out)
        if self._one_device:
            launch(inputs, output)
        else:
            with torch.cuda.device(a.device):
                launch(inputs, output)
        return output

    def _takes(self, a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor") -> bool:
        # A kernel reads what it was promised, whatever it is given: a wrong shape would be read out of bounds.
        import torch

        return (
            b.shape == self._b_shape
            and a.dim() == 2
            and a.shape[1] == self._b_shape[2]
            and ends.shape == self._b_shape[:1]
            and a.dtype is b.dtype is self._dtype
            and ends.dtype is torch.int32
            and a.is_contiguous()
            and b.is_contiguous()
            and ends.is_contiguous()
            and not (a.data_ptr() | b.data_ptr()) % ALIGNMENT
            and a.device == b.device == ends.device
        )

    def _scales_by(self, scale: "torch.Tensor | None", a: "torch.Tensor") -> bool:
        import torch

        if scale is None or not self._scaled:
            return scale is None and not self._scaled
        same = scale.dtype is torch.float32 and scale.device == a.device
        return same and scale.shape == a.shape[:1] and scale.is_contiguous()


def run_library(
    a: "torch.Tensor",
    b: "torch.Tensor",
    ends: "torch.Tensor",
    problem: GroupedProblem,
    scale: "torch.Tensor | None" = None,
) -> "torch.Tensor":
    """A product by torch itself, which refuses what is wrong; with what is behind the product of a problem."""
    import torch

    product = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
    if isinstance(problem, GatedProblem):
        return swiglu(product, problem.pairs)
    return product if scale is None else scaled(product, scale)


_families: dict[str, GroupedFamily] = {}


def name_of_grouped(bundle: Bundle, dispatch: GroupedDispatch) -> str:
    """How compiled code names the ranges of a product: it holds in every process that loaded the bundle."""
    return f"{bundle.digest}/{grouped_family(dispatch.problem)}"


def find_grouped(name: str) -> GroupedFamily:
    """The ranges of this name.

    Raises
    ------
    BundleError
        If the bundle that they are in was not loaded in this process, and is in none of the places of `look_in`.
    """
    if name not in _families:
        bundle = bundle_of(name)
        for each in bundle.grouped:
            _families.setdefault(name_of_grouped(bundle, each), GroupedFamily(bundle, each))
        if name not in _families:
            raise BundleError(f"bundle {bundle.path} decides nothing for {name.partition('/')[2]}")
    return _families[name]
