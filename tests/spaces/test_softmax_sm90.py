"""The softmax's space: its rules against arithmetic of their own, and its kernels against the real compiler."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.rowwise import TYPES, RowwiseProblem, Softmax
from tilescout.spaces.softmax_sm90.layout import SoftmaxShape
from tilescout.spaces.softmax_sm90.template import MOST_COLUMNS, MOST_ROWS, shape_of
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("softmax_sm90")
H200 = find_device("h200")

lengths = st.integers(1, 5000) | st.sampled_from([8192, 16384, 32768, 65536, 131072, 1_000_000]) | st.integers(1, 2**24)
problems = st.builds(RowwiseProblem, st.integers(1, 2**20), lengths, st.sampled_from(TYPES))
some = settings(max_examples=15, deadline=None)


@some
@given(problems)
def test_the_default_is_legal(problem: RowwiseProblem) -> None:
    assert TEMPLATE.default(problem, H200) in TEMPLATE.space(problem, H200)


def accesses(shape: SoftmaxShape, columns: int) -> np.ndarray:
    """How often each element of a row is loaded into registers, by all of its threads in all parts."""
    parts = -(-columns // shape.held) if shape.method == "streamed" else 1
    starts = np.arange(shape.row_threads * shape.cluster) * shape.vector  # of the first access of each thread
    offsets = np.add.outer(np.arange(parts) * shape.held, np.arange(shape.loads) * (shape.held // shape.loads))
    covered = np.add.outer(np.add.outer(offsets, starts), np.arange(shape.vector)).ravel()
    return np.bincount(covered[covered < columns], minlength=columns)


@some
@given(st.builds(RowwiseProblem, st.integers(1, 1000), st.integers(1, 40_000), st.sampled_from(TYPES)), st.integers(0))
def test_a_legal_configuration_reads_every_element_once_and_fits_the_gpu(problem: RowwiseProblem, seed: int) -> None:
    space = TEMPLATE.space(problem, H200)
    for index in space.sample(4, np.random.default_rng(seed)):
        shape = shape_of(space[int(index)])
        assert (accesses(shape, problem.columns) == 1).all()
        assert problem.columns % shape.vector == 0  # rows are aligned, and no access crosses the end of one
        assert shape.vector * problem.element.bytes <= 16
        assert shape.threads % shape.rows == 0
        assert shape.threads * shape.vector * shape.loads * 4 <= 64 * 1024 * 4 // 2  # half of the registers
        assert shape.cluster <= 8
        assert shape.cluster == 1 or shape.rows == 1
        assert shape.shared_memory <= 48 * 1024


@some
@given(problems)
def test_a_kernel_of_a_problem_holds_for_its_edge_problem(problem: RowwiseProblem) -> None:
    edge = Softmax().edge_problem(problem)
    space = TEMPLATE.space(problem, H200)
    of_edge = TEMPLATE.space(RowwiseProblem(max(problem.rows, edge.rows), edge.columns, edge.dtype), H200)
    # What is compiled in and rows can't do without: alignment, and room for the row. Filling is not about being right.
    columns = space.columns
    vectors, held = columns["vector"], columns["threads"] // columns["rows"] * columns["vector"] * columns["loads"]

    assert edge.signature == problem.signature
    assert (edge.columns % vectors == 0).all()
    assert ((held * columns["cluster"] >= edge.columns) | (columns["method"] == "streamed")).all()
    assert edge.rows * edge.columns <= 2**26
    assert len(of_edge) > 0


@pytest.mark.parametrize("text", [f"{MOST_ROWS + 1}x8:bf16", f"8x{MOST_COLUMNS + 8}:bf16"])
def test_what_no_grid_or_position_can_count_is_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="allowed are at most"):
        TEMPLATE.check(TEMPLATE.parse(text))


BASE: Mapping[str, Value] = {
    "threads": 256, "rows": 1, "cluster": 1, "vector": 8, "loads": 4, "method": "two_pass", "cache": "normal",
}  # fmt: skip
# The most elements a thread in blocks of each size, with each method, each way to exchange, and each type.
KERNELS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "a warp a row": ("bf16", {"rows": 8, "method": "online"}),
    "some threads a row": ("bf16", {"rows": 32, "loads": 8}),
    "most held of 128 threads": ("bf16", {"threads": 128, "loads": 16}),
    "most held of 512 threads": ("bf16", {"threads": 512, "loads": 8, "method": "online"}),
    "most held of 1024 threads": ("fp32", {"threads": 1024, "vector": 4, "loads": 8, "method": "online"}),
    "a cluster": ("fp32", {"vector": 4, "cluster": 8, "cache": "streaming"}),
    "a cluster, online": ("bf16", {"cluster": 4, "method": "online"}),
    "streamed": ("bf16", {"cluster": 2, "method": "streamed"}),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Artifact | CompileFailure]"]]:
    """`KERNELS`, being compiled."""
    store, options = ArtifactStore(tmp_path_factory.mktemp("store")), CompileOptions(processes=1)
    with CompilePool(TEMPLATE, "bf16", H200.arch, store, options) as pool:
        yield {
            name: pool.submit(Configuration.of({**BASE, **changes}), signature)
            for name, (signature, changes) in KERNELS.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles_within_its_registers_and_shared_memory(
    compiled: dict[str, "Future[Artifact | CompileFailure]"], name: str
) -> None:
    built = compiled[name].result()

    assert isinstance(built, Artifact), built.error
    assert built.resources is not None
    assert built.resources.spill_bytes == 0
    shape = shape_of(Configuration.of({**BASE, **KERNELS[name][1]}))
    reserved = 1024 if shape.shared_memory else 0  # that CUDA keeps for itself in a block with any
    assert built.resources.shared_memory == shape.shared_memory + reserved
