"""Files that are made to hang or to fill the memory are refused: soon, on one line, and within a bounded memory."""

import gzip
import hashlib
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.search.tables.table import Table, card_path, write_table
from tilescout.spaces.archive import read_arrays
from tilescout.spaces.errors import ModelError, TilescoutError
from tilescout.spaces.inputs import parse_json, parse_toml
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.suite import parse_suite

if TYPE_CHECKING:
    from conftest import ForkedScene  # type: ignore[import-not-found]

PROBLEM = "1024x1024x1024:bf16"
MEMORY, SECONDS = 3 << 30, 20  # of address space, most of it libraries'; for one file

CHILD = f"""
import json, resource, signal, sys
from pathlib import Path
import pyarrow.parquet
from tilescout.costmodel.persistence import load_model
from tilescout.search.export.bundle import read_bundle
from tilescout.search.export.from_studies import read_outcomes
from tilescout.search.measure.measurement import Status
from tilescout.search.studies.places import read_study
from tilescout.search.tables.results import read_results
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.subspace import read_subspace
from tilescout.spaces.suite import find_suite

resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
readers = {{
    ".npz": lambda path: load_model(Path(path)),
    ".toml": find_suite,
    ".parts": lambda path: read_subspace(Path(path), ()),
    ".json": lambda path: read_outcomes([path], "studies"),
    ".bundle": lambda path: read_bundle(Path(path)),
    ".journal": lambda path: read_study(path, "studies"),
    ".cache": lambda path: read_results(Path(path)),
    ".parquet": lambda path: Table.read(Path(path)),
}}
for path in sys.argv[1:]:
    signal.alarm({SECONDS})
    try:
        readers[Path(path).suffix](path)
        said = "it was read"
    except TilescoutError as error:
        said = str(error)
    print(json.dumps([path, said]))
"""


def archive(array: bytes, **options: Any) -> bytes:
    """A model whose card has these bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", options.get("packed", zipfile.ZIP_DEFLATED)) as file:
        with file.open("card.npy", "w", force_zip64=True) as member:
            member.write(array)
            for _ in range(options.get("zeros", 0)):
                member.write(bytes(1 << 20))
        for number in range(options.get("more", 0)):
            file.writestr(f"{number}.npy", array)
        if "claims" in options:
            file.infolist()[0].file_size = options["claims"]
    return made.getvalue()


def header(dtype: str, shape: str) -> bytes:
    """The start of an array's file."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def card(content: bytes, **members: Any) -> bytes:
    """The card of a table whose Parquet file has this content."""
    texts = ("space", "source_hash", "device", "product", "driver", "protocol", "protocol_text", "library")
    sealed = {"rows": 0, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    about = {"format": 2, "versions": {}, "recorded": "2026-11-30", "baselines": {}}
    return json.dumps({**dict.fromkeys(texts, "x"), **sealed, **about, **members}).encode()


def many_values() -> tuple[bytes, bytes]:
    """A table with a knob of many values, and the last of them in the default of each of many problems."""
    baseline = {"default": {"a": 399_999}, "library_us": 1}
    baselines = {f"p{number}": baseline for number in range(60_000)}
    return b"PAR1", card(b"PAR1", knobs={"a": list(range(400_000))}, baselines=baselines)


def many_columns() -> tuple[bytes, bytes]:
    """A table without rows and with many knobs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, sink = [f"k{number}" for number in range(40_000)], pa.BufferOutputStream()
    pq.write_table(pa.schema([(name, pa.int32()) for name in names]).empty_table(), sink, store_schema=False)
    content = bytes(sink.getvalue())
    return content, card(content, knobs={name: [1] for name in names})


CACHE_START = b'{"device_name": "x", "kernel_name": "k", "cache": {'
ZEROS = gzip.compress(bytes(1 << 24))

FILES: dict[str, Callable[[], bytes]] = {
    "bomb.npz": lambda: archive(header("'<f8'", f"({400 << 17},)"), zeros=400),
    "claims.npz": lambda: archive(header("'<f8'", "(10000000000000,)")),
    "negative.npz": lambda: archive(header("'<f8'", "(-5, 3)")),
    "objects.npz": lambda: archive(header("'|O'", "(1,)") + b"cos\nsystem\n(S'echo'\ntR."),
    "code.npz": lambda: archive(header("__import__('os').system('id')", "(1,)")),
    "deep.npz": lambda: archive(header("'<f8'", "(" * 2000)),
    "many.npz": lambda: archive(header("'<f8'", "()") + bytes(8), more=2000),
    "text.npz": lambda: archive(header("'<U2'", "()") + b"\xff" * 8),
    "dots.toml": lambda: b"a." * 75_000 + b"a = 1",
    "quoted.toml": lambda: b"'a' . \"b\"." * 20_000 + b"a = 1",
    "header.toml": lambda: b"[" + b"a." * 75_000 + b"a]",
    "lists.toml": lambda: b"problems = " + b"[" * 200_000,
    "tables.toml": lambda: b"a = " + b"{a=" * 100_000,
    "product.toml": lambda: (
        b"[tokens]\ndecode = [%s]\n" % (b"1," * 30_000) + b'[[product]]\nname="q"\nn=64\nk=64\n' * 3000
    ),
    "number.toml": lambda: b'problems = [{ problem = "8x8x8", count = 0x' + b"f" * 100_000 + b" }]",
    "repeated.toml": lambda: (
        b'routings=["balanced"]\nbatches=["x"]\n[[expert]]\nname="a"\nn=64\nk=64\nexperts=[4000000000,1]'
    ),
    "unyielding.toml": lambda: (
        b"routings=[]\nbatches=[%s]\nexpert=[%s]" % (b"1," * 240_000, b"{experts=[1,1]}," * 25_000)
    ),
    "name.toml": lambda: b'routings=["balanced"]\nbatches=[16]\n[[expert]]\nname=["a",1]\nn=128\nk=128\nexperts=[1,2]',
    "names.toml": lambda: (
        b'[tokens]\ntraining = [%s]\n[[product]]\nn=64\nk=64\nname="%s"' % (b"1," * 6000, b"a" * 900_000)
    ),
    "recorded.toml": lambda: (
        b'batches=[%s]\nroutings=["recorded-%s1"]\n[[expert]]\nname="a"\nn=64\nk=64\nexperts=[1,4096]'
        % (b"4096," * 19_000, b"1." * 4095)
    ),
    "title.toml": lambda: b'problems = ["8x8x8"]\ntitle = 0x' + b"f" * 5000,
    "source.toml": lambda: b'problems = ["8x8x8"]\nsource = 0x' + b"f" * 5000,
    "large.toml": lambda: b"# \n" * (1 << 20),
    "dots.parts": lambda: b"a." * 75_000 + b"a = 1",
    "deep.json": lambda: b'{"a":' * 900 + b"1" + b"}" * 900,
    "deeper.json": lambda: b"[" * 1_000_000,
    "wide.json": lambda: b"[" + b"[]," * 5_000_000 + b"1]",
    "number.json": lambda: b'{"space": ' + b"9" * 100_000 + b"}",
    "deep.journal": lambda: b'{"op_code":0,"study_name":' + b"[" * 100_000 + b"\n",
    "bomb.cache": lambda: ZEROS * 64,
    "wide.cache": lambda: gzip.compress(CACHE_START + b'"a": [' + b"[]," * 40_000_000 + b"1]}}", 1),
    "wide-list.cache": lambda: gzip.compress(b'[{"time": 1, "a": [' + b"[]," * 40_000_000 + b"1]}]", 1),
    "deep-results.cache": lambda: b'{"results": ' + b"[" * 1_000_000,
    "torn.cache": lambda: ZEROS[:-20],
    "deep.cache": lambda: CACHE_START + b"[" * 1_000_000,
    "parameters.cache": lambda: (
        b'{"tune_params_keys": %s, "cache": {"1": {"time": 1}}}' % json.dumps([*map(str, range(400_000))]).encode()
    ),
    "values.cache": lambda: (
        b'{"device_name": "x", "kernel_name": "k", "problem_size": [8], "tune_params": {"a": [%s0]}, "cache": {%s}}'
        % (b"0," * 1_000_000, b"".join(b'"%d": {"time": 1},' % number for number in range(1, 20_000)) + b'"0": 1')
    ),
}
TABLES: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "values.parquet": many_values,
    "columns.parquet": many_columns,
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Hostile files of all kinds, and pipes, sockets, devices and folders in the place of each."""
    folder = tmp_path_factory.mktemp("hostile")
    made = []
    for name, content in FILES.items():
        path = folder / name
        path.write_bytes(content())
        made.append(path)
    for name, table in TABLES.items():
        path = folder / name
        rows, described = table()
        path.write_bytes(rows)
        card_path(path).write_bytes(described)
        made.append(path)
    sockets = []
    for kind in ("npz", "toml", "parts", "json", "journal", "cache", "parquet"):
        for what in ("pipe", "socket", "zeros", "folder", "loop"):
            path = folder / f"{what}.{kind}"
            match what:
                case "pipe":
                    os.mkfifo(path)
                case "socket":
                    sockets.append(socket.socket(socket.AF_UNIX))
                    sockets[-1].bind(os.path.relpath(path))
                case "zeros":
                    path.symlink_to("/dev/zero")
                case "folder":
                    path.mkdir()
                case "loop":
                    path.symlink_to(path)
            made.append(path)
    os.mkfifo(folder / "card.json")
    (folder / "card.parquet").write_bytes(b"PAR1")
    (folder / "pipe.bundle").mkdir()
    os.mkfifo(folder / "pipe.bundle" / "bundle.json")
    (folder / "deep.bundle").mkdir()
    (folder / "deep.bundle" / "bundle.json").write_bytes(b'{"a":' * 990 + b"1" + b"}" * 990)
    yield [*made, folder / "card.parquet", folder / "pipe.bundle", folder / "deep.bundle"]
    for each in sockets:
        each.close()


@pytest.mark.slow
def test_every_reader_refuses_them_soon_and_in_little_memory(hostile: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, *hostile], capture_output=True, text=True, check=False, timeout=300
    )

    said = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert set(said) == {str(path) for path in hostile}
    for path, line in said.items():
        assert line != "it was read", path
        assert len(line.splitlines()) == 1, (path, line)
        assert len(line) < 1000, (path, line)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_claims_little_is_not_unpacked_further(packed: int) -> None:
    content = archive(header("'<f8'", "(100,)"), zeros=64, packed=packed, claims=1000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"packed in another way|Bad CRC-32"):
            read_arrays(content, 1 << 20)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(content) + (4 << 20)


def test_an_archive_of_many_members_is_refused_before_each_is_an_object() -> None:
    first = struct.pack("<4s2B4HL2L2H", b"PK\3\4", 20, 0, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"a"
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, 1, *[0] * 6) + b"a"
    count = 30_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(entry) * count, len(first), 0)
    content = first + entry * count + end
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert len(archive.infolist()) == count
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 1000 arrays"):
            read_arrays(content, 1 << 20)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "--study", "pipe.json", "--out", "bundle"),
        ("suites", "pipe.toml"),
        ("tune", "gemm_sm90", "--problem", PROBLEM, "--table", "pipe.parquet"),
        ("tables", "pipe.parquet"),
        ("tables", "import", "pipe.json", "out.parquet"),
        ("predict", "gemm_sm90", "--problem", PROBLEM, "--model", "pipe.npz"),
        ("report", "pipe.journal"),
    ],
    ids=" ".join,
)
def test_a_pipe_on_the_command_line(forked_scene: "ForkedScene", arguments: tuple[str, ...]) -> None:
    for kind in ("json", "toml", "parquet", "npz", "journal"):
        os.mkfifo(forked_scene.folder / f"pipe.{kind}")

    done = forked_scene.survives(*arguments, codes=(0, 2) if arguments[0] == "tables" else (2,))

    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("tables", "{}"),
        ("tables", "{}.parquet"),
        ("predict", "gemm_sm90", "--problem", PROBLEM, "--model", "{}.npz"),
        ("compare", "--samplers", "random", "--trials", "1", "--seeds", "1", "--out", "{}"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_on_the_command_line(forked_scene: "ForkedScene", arguments: tuple[str, ...]) -> None:
    done = forked_scene.survives(*(each.format("n" * 300) for each in arguments), codes=(2,))

    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"tilescout: can't \w+( at)? n+.*: File name too long", line)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Where to put a model, and one that is small."""
    shipped = shipped_model("gemm_sm90", "h200")
    assert shipped is not None
    arrays = read_arrays(shipped.read_bytes(), 1 << 28)
    second = int(arrays["forest.roots"][1])
    small = {name: array[:second] if name.startswith("forest") else array for name, array in arrays.items()}
    small["forest.roots"] = arrays["forest.roots"][:1]
    made = io.BytesIO()
    np.savez_compressed(made, allow_pickle=False, **small)
    return tmp_path_factory.mktemp("models") / "model.npz", made.getvalue()


def test_the_model_that_is_damaged_is_one(model: tuple[Path, bytes]) -> None:
    path, content = model
    path.write_bytes(content)
    load_model(path)


@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_of_a_model(model: tuple[Path, bytes], data: st.DataObject) -> None:
    path, content = model
    # Half of them where the archive says what it holds, at the start and at the end.
    near = st.integers(0, 1000) | st.integers(len(content) - 1000, len(content) - 1)
    at, bit = data.draw(near | st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    refusal = ""
    try:
        load_model(path)  # of what the archive says of itself, some bits don't matter
    except ModelError as error:
        refusal = str(error)
    assert len(refusal.splitlines()) <= 1


def test_a_table_with_more_rows_than_its_card_says(tmp_path: Path, small_table: Table) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "table.parquet"
    whole = pq.read_table(small_table.path)
    pq.write_table(pa.concat_tables([whole] * 3), path)
    card = json.loads(card_path(small_table.path).read_bytes())
    card |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    card_path(path).write_text(json.dumps(card))

    with pytest.raises(TilescoutError, match="the card says"):
        Table.read(path)


@pytest.mark.slow
def test_a_table_whose_rows_are_few_bytes_and_much_memory(tmp_path: Path, small_table: Table) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, rows = tmp_path / "table.parquet", 10_000_000
    first = pq.read_table(small_table.path).slice(0, 1)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        many = pa.table([pa.concat_arrays([column.chunk(0)] * 1000) for column in first.columns], schema=first.schema)
        many = pa.concat_tables([many] * 1000).combine_chunks()
        for _ in range(rows // len(many)):
            writer.write_table(many)
    card = json.loads(card_path(small_table.path).read_bytes())
    card |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": rows}
    card_path(path).write_text(json.dumps(card))

    with pytest.raises(TilescoutError, match="MB are read"):
        Table.read(path)
    assert path.stat().st_size < 3e6


@pytest.mark.slow
def test_a_table_of_many_problems_finds_the_rows_of_each_soon(tmp_path: Path, small_table: Table) -> None:
    import pyarrow as pa

    names = [f"p{number}" for number in range(8_000)]
    baseline = next(iter(small_table.card.baselines.values()))
    described = replace(small_table.card, space="unknown", baselines=dict.fromkeys(map(NamedProblem, names), baseline))
    rows = small_table.data.take([0] * len(names))
    at = rows.schema.get_field_index("problem")
    rows = rows.set_column(at, rows.schema.field(at), pa.array(names).dictionary_encode())
    table = write_table(tmp_path / "many.parquet", described, rows)

    begun = time.process_time()
    found = [table.rows(problem).tolist() for problem in table.problems]
    assert time.process_time() - begun < 2
    assert found == [[number] for number in range(len(names))]


DOTS = ".".join(["100000"] * 4096)


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c = 1",
        "x = 1.5 # a. b. c.",
        f'x = "recorded-{DOTS}"',
        f"x = 'recorded-{DOTS}'",
        f'x = ["recorded-{DOTS}", "{DOTS}"]\n[[y]]\nx = {{ y = "{DOTS}", z = \'{DOTS}\' }}',
        f'x = """{DOTS}\n" "" {DOTS}\\"""{DOTS}""""" # {DOTS}',
        f"x = '''{DOTS}\n' '' {DOTS}''''' # {DOTS}",
        f'"{DOTS}"."{DOTS}" = "\\"{DOTS}"\nx = 1',
    ],
)
def test_dots_that_are_no_deep_key(text: str) -> None:
    assert parse_toml(text)


PARTS = st.sampled_from(["a", "'a.\"'", '"a"', '""', '"\\""', '"\\\\"', '"#"', "a-1_"])
BEFORE = [
    'x = "a.b"',
    "x = 'a\"'",
    'x = "\\\\"',
    'x = """a"b""c\n\\""" """"" # a.b',
    "x = '''a'b''c\n\\'''''",
    "# ' \"",
    "x = [1.5, '#', \"'\"]",
]


@settings(max_examples=200)
@given(
    before=st.lists(st.sampled_from(BEFORE), max_size=3),
    parts=st.lists(PARTS, min_size=1, max_size=30),
    dot=st.sampled_from([".", " . ", "\t."]),
    form=st.sampled_from(["{} = 1", "[{}]", "[[{}]]", "[ {} ]", "y = {{ z = 'a.', {} = 1 }}"]),
)
def test_a_long_key_is_found_wherever_one_can_stand_and_nowhere_else(
    before: list[str], parts: list[str], dot: str, form: str
) -> None:
    lines = [line.replace("x = ", f"x{number} = ") for number, line in enumerate(before)]
    text = "\n".join([*lines, form.format(dot.join(parts))])
    if len(parts) > 16:
        with pytest.raises(ValueError, match="a key of more than 16 parts"):
            parse_toml(text)
    else:
        assert parse_toml(text)


@pytest.mark.parametrize("part", ["a.", '"a".', "'a' . "])
@pytest.mark.parametrize("start", ["", 'x = "a.b"\n', "[", "x = {", "x = { y = 'a.b', "])
def test_a_long_key_is_refused_soon(start: str, part: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="a key of more than 16 parts"):
        parse_toml(start + part * 75_000)
    assert time.process_time() - begun < 2


def test_a_suite_of_many_recorded_experts_is_one() -> None:
    text = f'batches=[4096]\nroutings=["recorded-{DOTS}"]\n[[expert]]\nname="a"\nn=128\nk=128\nexperts=[1,4096]\n'
    (entry,) = parse_suite("suite", text).entries
    assert entry.problem.endswith(f":recorded-{DOTS}")


@given(depth=st.integers(1, 200))
def test_depth_is_bounded(depth: int) -> None:
    text = "[" * depth + "]" * depth
    if depth <= 64:
        assert parse_json(text) is not None
    else:
        with pytest.raises(ValueError, match="deep"):
            parse_json(text)
