"""The compiler processes: what they build, what they survive, and that they do nothing twice."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, CompileFailure, read_shared_object
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.making import build
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ArtifactError, BuildError, StoreError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import Built, find_template

TWO = CompileOptions(processes=2, timeout=120)


def plain(fault: str = "nothing", repeats: int = 1) -> Configuration:
    return Configuration.of({"fault": fault, "repeats": repeats})


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def open_pool(plain_gemm: ModuleType, store: ArtifactStore) -> Callable[..., CompilePool]:
    """A function: a pool for the plain GEMM on the store, to be closed by its user."""

    def open_pool(options: CompileOptions = TWO) -> CompilePool:
        return CompilePool(plain_gemm.TEMPLATE, "bf16", "host", store, options)

    return open_pool


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def files(store: ArtifactStore) -> dict[Path, int]:
    """Every file below the store, with the time of its last change."""
    return {path: path.stat().st_mtime_ns for path in store.root.rglob("*") if path.is_file()}


def test_a_second_run_compiles_nothing_and_starts_no_process(
    open_pool: Callable[..., CompilePool], store: ArtifactStore, children: Callable[[], set[int]]
) -> None:
    wanted = [plain(), plain("compiler_refuses"), plain(repeats=2)]
    with open_pool() as pool:
        first = [pool.submit(configuration).result() for configuration in wanted]
    before, bystanders = files(store), children()

    with open_pool() as pool:
        second = [pool.submit(configuration).result() for configuration in wanted]
        assert children() == bystanders

    assert second == first
    assert files(store) == before
    assert len(before) == 5  # three records, two libraries: the objects between are gone


def test_what_does_not_compile_is_recorded_with_its_reason_and_stops_no_other(
    open_pool: Callable[..., CompilePool], store: ArtifactStore, plain_gemm: ModuleType
) -> None:
    with open_pool() as pool:
        refused, made = (pool.submit(plain(fault)) for fault in ("compiler_refuses", "nothing"))
        failure, artifact = refused.result(), made.result()

    assert isinstance(failure, CompileFailure)
    assert not failure.timed_out
    assert "COMPILER_REFUSES" in failure.error
    assert failure.compile_seconds > 0
    assert "\n" not in failure.error
    stored = store.find(ArtifactKey.of(plain_gemm.TEMPLATE, plain("compiler_refuses"), "bf16", "host"))
    assert stored is not None
    assert (stored.error, stored.path.exists()) == (failure.error, False)

    assert isinstance(artifact, Artifact)
    read_shared_object(artifact.path, artifact.sha256)
    assert artifact.function == "plain_gemm"
    assert artifact.resources is None  # it occupies nothing of a GPU
    assert artifact.compile_seconds > 0


def test_a_compiler_gives_way_to_the_process_that_measures(
    open_pool: Callable[..., CompilePool], children: Callable[[], set[int]]
) -> None:
    before = children()
    with open_pool() as pool:
        pool.submit(plain("compiler_hangs"))
        wait_until(lambda: len(children() - before) == 2)  # the warm process and the compiler
        priorities = [os.getpriority(os.PRIO_PROCESS, child) for child in children() - before]

    assert min(priorities) > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.slow
def test_compilers_that_hang_or_die_are_killed_and_replaced_and_their_siblings_unharmed(
    open_pool: Callable[..., CompilePool], store: ArtifactStore, children: Callable[[], set[int]]
) -> None:
    before = children()
    with open_pool(replace(TWO, timeout=3)) as pool:
        hangs = pool.submit(plain("compiler_hangs"))
        pool.options = TWO  # of the others, which may be slow
        dies = pool.submit(plain("compiler_aborts"))
        good = [pool.submit(plain(repeats=repeats)) for repeats in (1, 2, 4)]
        outcomes = [future.result() for future in good]
        hung, dead = hangs.result(), dies.result()

    assert all(isinstance(outcome, Artifact) for outcome in outcomes)
    assert hung == CompileFailure("the compiler did not finish in 3 s and was killed", 3.0, timed_out=True)
    assert isinstance(dead, CompileFailure)
    assert not dead.timed_out
    assert dead.error == f"the compiler died with exit code {-signal.SIGABRT}"
    assert 0 < dead.compile_seconds < TWO.timeout
    assert children() == before
    # Neither says that the configuration can't be compiled: both would be tried again.
    assert len([path for path in files(store) if path.name == "artifact.json"]) == 3


def test_two_pools_that_compile_the_same_at_once_agree(
    open_pool: Callable[..., CompilePool], store: ArtifactStore
) -> None:
    with open_pool() as one, open_pool() as other:
        # Both look the configuration up before either has made it.
        futures = [pool.submit(plain(repeats=repeats)) for repeats in (1, 2, 4) for pool in (one, other)]
        outcomes = [future.result() for future in futures]

    assert outcomes[::2] == outcomes[1::2]
    for outcome in outcomes:
        assert isinstance(outcome, Artifact)
        read_shared_object(outcome.path, outcome.sha256)
    assert len(files(store)) == 6
    assert not list(store.root.glob("tmp-*"))


def test_a_damaged_record_or_a_missing_library_is_compiled_again(
    open_pool: Callable[..., CompilePool],
) -> None:
    wanted = [plain(), plain(repeats=2)]
    with open_pool() as pool:
        first = [pool.submit(configuration).result() for configuration in wanted]
    assert isinstance(first[0], Artifact)
    assert isinstance(first[1], Artifact)
    first[0].path.with_name("artifact.json").write_text('{"format": 1, "key"')
    first[1].path.unlink()

    with open_pool() as pool:
        second = [pool.submit(configuration).result() for configuration in wanted]

    for before, outcome in zip(first, second, strict=True):
        assert isinstance(outcome, Artifact)
        read_shared_object(outcome.path, outcome.sha256)
        assert isinstance(before, Artifact)
        assert outcome.path == before.path


def test_a_store_that_can_not_be_written_is_an_error_not_a_failed_configuration(
    open_pool: Callable[..., CompilePool], store: ArtifactStore
) -> None:
    with open_pool() as pool:
        shutil.rmtree(store.root)
        store.root.write_text("in the way")

        with pytest.raises(StoreError, match="the artifact store"):
            pool.submit(plain()).result()


@pytest.mark.parametrize("tool", ["cc", "cuobjdump"])
def test_a_missing_tool_is_not_recorded_as_the_configurations_fault(
    plain_gemm: ModuleType, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    def missing() -> str:
        raise BuildError(f"{tool} is missing")

    lookup = {"cc": "find_linker", "cuobjdump": "find_cuobjdump"}[tool]
    monkeypatch.setattr(f"tilescout.search.build.making.{lookup}", missing)
    key = ArtifactKey.of(plain_gemm.TEMPLATE, plain(), "bf16", "host")

    with pytest.raises(BuildError, match=tool):
        build(plain_gemm.TEMPLATE, key, store)
    assert store.find(key) is None


def test_no_c_compiler_on_the_path_is_named(
    plain_gemm: ModuleType, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(BuildError, match="no C compiler"):
        build(plain_gemm.TEMPLATE, ArtifactKey.of(plain_gemm.TEMPLATE, plain(), "bf16", "host"), store)


def test_an_object_that_does_not_link_is_recorded(
    plain_gemm: ModuleType, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlinkable(self: object, configuration: object, dtype: str, arch: str, path: Path) -> Built:
        path.write_text("?")
        return Built("kernel", None)

    monkeypatch.setattr(plain_gemm.PlainGemmTemplate, "build", unlinkable)

    artifact = build(plain_gemm.TEMPLATE, ArtifactKey.of(plain_gemm.TEMPLATE, plain(), "bf16", "host"), store)

    assert artifact.error.startswith("linking failed: ")
    assert not artifact.path.exists()


def test_a_failed_build_that_left_a_folder_is_recorded_without_it(
    plain_gemm: ModuleType, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def littering(self: object, configuration: object, dtype: str, arch: str, path: Path) -> Built:
        path.with_name("work").mkdir()
        raise BuildError("refused")

    monkeypatch.setattr(plain_gemm.PlainGemmTemplate, "build", littering)

    artifact = build(plain_gemm.TEMPLATE, ArtifactKey.of(plain_gemm.TEMPLATE, plain(), "bf16", "host"), store)

    assert artifact.error == "refused"
    assert [path.name for path in files(store)] == ["artifact.json"]
    assert not list(store.root.glob("tmp-*"))


def test_closing_kills_what_still_compiles(
    open_pool: Callable[..., CompilePool], store: ArtifactStore, children: Callable[[], set[int]]
) -> None:
    before = children()
    with open_pool() as pool:
        for repeats in (1, 2, 4):
            pool.submit(plain("compiler_hangs", repeats))
        wait_until(lambda: len(list(store.root.glob("tmp-*"))) == 2)  # both compile; the third waits for its turn
        assert len(children() - before) == 3

    assert children() == before


def test_what_a_linker_leaves_that_is_killed_is_in_the_store(
    plain_gemm: ModuleType, store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cc = tmp_path / "cc"
    cc.write_text(
        f'#!/bin/sh\nPATH={os.environ["PATH"]}\ncase "$*" in -shared*) mktemp >"$0.left"; esac\nexec gcc "$@"\n'
    )
    cc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    build(plain_gemm.TEMPLATE, ArtifactKey.of(plain_gemm.TEMPLATE, plain(), "bf16", "host"), store)
    assert Path(f"{cc}.left").read_text().startswith(f"{store.root}/tmp-")


def test_a_kernel_that_nobody_wants_any_more_is_not_compiled(
    open_pool: Callable[..., CompilePool], store: ArtifactStore, children: Callable[[], set[int]]
) -> None:
    before = children()
    with open_pool(CompileOptions(processes=1)) as pool:
        begun, queued, wanted = [pool.submit(each) for each in (plain("compiler_hangs"), plain(repeats=2), plain())]
        wait_until(lambda: len(children() - before) == 2)
        assert queued.cancel()
        assert begun.cancel()

        assert isinstance(wanted.result(timeout=120), Artifact)

    assert len([path for path in files(store) if path.name == "artifact.json"]) == 1


def test_what_is_only_likely_to_be_wanted_is_compiled_last_until_it_is_wanted(
    open_pool: Callable[..., CompilePool], children: Callable[[], set[int]]
) -> None:
    before, built = children(), list[str]()
    with open_pool(CompileOptions(processes=1)) as pool:
        begun = pool.submit(plain("compiler_hangs"))
        wait_until(lambda: len(children() - before) == 2)
        likely = [pool.submit(plain(repeats=repeats), later=True) for repeats in (2, 4)]
        wanted = [pool.submit(plain()), pool.submit(plain(repeats=4))]
        for name, future in zip(("likely", "joined", "wanted", "again"), [*likely, *wanted], strict=True):
            future.add_done_callback(lambda _, name=name: built.append(name))  # type: ignore[misc]
        begun.cancel()
        assert all(isinstance(each.result(timeout=120), Artifact) for each in (*likely, *wanted))
        wait_until(lambda: len(built) == 4)

    assert built[0] == "wanted"
    assert built[-1] == "likely"


def test_a_killed_warm_process_costs_no_kernel_and_is_told_of(
    open_pool: Callable[..., CompilePool], children: Callable[[], set[int]], caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    with open_pool(CompileOptions(processes=1)) as pool:
        hung, waiting = pool.submit(plain("compiler_hangs")), pool.submit(plain())
        wait_until(lambda: len(children() - before) == 2)
        warm, compiler = sorted(children() - before)
        os.kill(warm, signal.SIGKILL)
        wait_until(lambda: not {warm, compiler} & children())
        hung.cancel()

        assert isinstance(waiting.result(timeout=120), Artifact)
    assert "the process that compilers are forked from ended with exit code -9: starting another" in caplog.messages
    assert children() == before


def test_a_warm_process_that_always_ends_is_not_started_for_ever(plain_gemm: ModuleType, store: ArtifactStore) -> None:
    ended = f"ended with exit code {-signal.SIGABRT}, 3 times in a row"

    with CompilePool(plain_gemm.COLD, "bf16", "host", store, TWO) as pool, pytest.raises(BuildError, match=ended):
        pool.submit(plain()).result(timeout=120)


def test_the_real_kernel_is_built_with_what_it_occupies(compiled_gemm: Artifact) -> None:
    template = find_template("gemm_sm90")

    read_shared_object(compiled_gemm.path, compiled_gemm.sha256)
    assert compiled_gemm.function == "gemm_sm90"
    assert compiled_gemm.resources is not None
    assert compiled_gemm.resources.spill_bytes == 0
    assert 0 < compiled_gemm.resources.registers <= 255
    assert 100_000 < compiled_gemm.resources.shared_memory <= 232_448
    assert compiled_gemm.path.with_name("artifact.json").read_text().count(template.source_hash) == 1


@pytest.fixture
def open_launched(plain_gemm: ModuleType, store: ArtifactStore) -> Callable[..., CompilePool]:
    """A function: a pool of kernels whose repeats only a launch knows, and can't make four."""
    return lambda: CompilePool(plain_gemm.LAUNCHED, "bf16", "host", store, TWO)


def test_what_differs_in_its_launch_alone_is_compiled_once_and_costs_it_once(
    open_launched: Callable[..., CompilePool], children: Callable[[], set[int]]
) -> None:
    with open_launched() as pool:
        outcomes = [pool.submit(plain(repeats=repeats)) for repeats in (2, 2, 1, 4)]
        twice, again, once, refused = (outcome.result() for outcome in outcomes)
    assert isinstance(twice, Artifact)
    assert isinstance(again, Artifact)
    assert isinstance(once, Artifact)
    compiled = read_shared_object(once.path, once.sha256)
    assert read_shared_object(twice.path, twice.sha256) == compiled + b"2 times"
    assert (again.path, again.sha256) == (twice.path, twice.sha256)
    assert again.compile_seconds < once.compile_seconds < twice.compile_seconds
    assert isinstance(refused, CompileFailure)
    assert refused.error == "four are too many"

    bystanders = children()
    with open_launched() as pool:
        assert pool.submit(plain()).result() == once
        found = pool.submit(plain(repeats=2)).result()
        assert isinstance(found, Artifact)
        assert found.sha256 == twice.sha256
        assert children() == bystanders
        assert sorted(each["repeats"] for each in pool.stored("bf16")) == [1, 2]


def test_what_does_not_compile_is_no_kernel_however_it_is_launched(open_launched: Callable[..., CompilePool]) -> None:
    with open_launched() as pool:
        outcomes = [pool.submit(plain("compiler_refuses", repeats)) for repeats in (2, 2, 1)]
        later, again, first = (outcome.result() for outcome in outcomes)
    assert isinstance(later, CompileFailure)
    assert isinstance(again, CompileFailure)
    assert isinstance(first, CompileFailure)
    assert later.error == again.error == first.error
    assert later.compile_seconds > 0 == again.compile_seconds  # it is compiled once


def test_a_compiler_works_for_all_that_is_compiled_as_one_until_none_is_wanted(
    open_launched: Callable[..., CompilePool], store: ArtifactStore
) -> None:
    with open_launched() as pool:
        outcomes = [pool.submit(plain("compiler_hangs", repeats)) for repeats in (1, 2)]
        assert outcomes[0].cancel()
        assert not outcomes[1].done()
        assert outcomes[1].cancel()
        made = pool.submit(plain(repeats=2))
        assert isinstance(made.result(), Artifact)
    assert not list(store.root.glob("tmp-*"))


def test_a_kernel_that_is_damaged_is_not_launched_otherwise(open_launched: Callable[..., CompilePool]) -> None:
    with open_launched() as pool:
        once = pool.submit(plain()).result()
        assert isinstance(once, Artifact)
        once.path.chmod(0o644)
        once.path.write_bytes(once.path.read_bytes()[:-1])
        with pytest.raises(ArtifactError, match="damaged"):
            pool.submit(plain(repeats=2)).result()


@pytest.fixture
def open_pair(store: ArtifactStore) -> Iterator[Callable[[], list[CompilePool]]]:
    """A function: a pool for the first space of products, with one compiler, and one for the second beside it."""
    with ExitStack() as stack:

        def open_pair() -> list[CompilePool]:
            pools: list[CompilePool] = []
            for name in ("gemm_sm90", "gemm_streamk_sm90"):
                beside = pools[0] if pools else None
                options = CompileOptions(processes=1, standby=False)
                pool = CompilePool(find_template(name), "bf16", "sm_90a", store, options, beside)
                pools.append(stack.enter_context(pool))
            return pools

        yield open_pair


def default_of(pool: CompilePool) -> Configuration:
    return pool.template.default(pool.template.parse("256x4096x4096:bf16"), find_device("h200"))


def test_two_spaces_have_as_many_compilers_together_as_one_has(open_pair: Callable[[], list[CompilePool]]) -> None:
    there: list[tuple[float, object]] = []
    for pool in open_pair():
        pool.submit(default_of(pool)).add_done_callback(lambda done: there.append((time.monotonic(), done.result())))
    wait_until(lambda: len(there) == 2)

    (first_there, first), (second_there, second) = there
    assert isinstance(first, Artifact)
    assert isinstance(second, Artifact)
    assert second.path != first.path
    assert second_there - second.compile_seconds > first_there - 0.1  # it was begun once the other was there


def test_a_space_that_is_closed_leaves_the_compilers_to_the_other(
    open_pair: Callable[[], list[CompilePool]], children: Callable[[], set[int]]
) -> None:
    lender, borrower = open_pair()
    wanted, unwanted = lender.submit(default_of(lender)), borrower.submit(default_of(borrower))
    borrower.close()

    assert unwanted.cancelled()
    assert isinstance(wanted.result(), Artifact)
    assert isinstance(lender.submit(default_of(lender)).result(), Artifact)
    assert children()
    lender.close()
    assert not children()


def test_a_template_of_ones_own_has_compilers_of_its_own(
    plain_gemm: ModuleType, open_pair: Callable[[], list[CompilePool]], store: ArtifactStore
) -> None:
    lender = open_pair()[0]
    with CompilePool(plain_gemm.TEMPLATE, "bf16", "host", store, TWO, beside=lender) as own:
        built = [own.submit(plain()), lender.submit(default_of(lender))]
        assert all(isinstance(each.result(), Artifact) for each in built)
