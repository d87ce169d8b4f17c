"""Suites: the shipped ones, and what a file may say."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_suites import PHASES
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.suite import Entry, find_suite, parse_suite, suite_names, write_suite
from tilescout.spaces.templates import find_template

MODEL = """
title = "A model"
source = "invented"
[tokens]
decode = [1, 64]
training = [4096]
[[product]]
name = "in"
n = 6144
k = 2048
count = 3
[[product]]
name = "expert"
n = 768
k = 2048
experts = [2, 8]
"""


OF_EXPERTS = {"experts"}


@pytest.mark.parametrize("name", [name for name in suite_names() if name not in OF_EXPERTS])
def test_a_shipped_suite_is_one_that_the_gemm_can_compute(name: str) -> None:
    suite = find_suite(name)
    assert suite.title
    assert suite.source
    template = find_template("gemm_sm90")
    for text, problem in zip(suite.problems, suite.parsed(template.parse), strict=True):
        template.check(problem)
        assert str(problem) == text
    for phase in suite.phases:
        assert {entry.phase for entry in find_suite(f"{name}:{phase}").entries} == {phase}


@pytest.mark.parametrize("name", sorted(OF_EXPERTS))
def test_a_shipped_suite_of_experts_has_every_token_at_each_of_its_experts(name: str) -> None:
    suite, template = find_suite(name), find_template("quack_varlen")
    assert suite.title
    assert suite.source
    for text, problem in zip(suite.problems, suite.parsed(template.parse), strict=True):
        template.check(problem)
        assert str(problem) == text
        assert isinstance(problem, GroupedProblem)
    labels = dict.fromkeys(entry.label for entry in suite.entries)
    assert len(suite.problems) == len(labels) * len({entry.problem.partition(":")[2] for entry in suite.entries}) * 6


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("experts = [2]", r"experts = \[A, E\] are integers, A from 1 to E, not \[2\]"),
        ("experts = [9, 8]", r"A from 1 to E, not \[9, 8\]"),
        ("experts = [true, 8]", r"A from 1 to E, not \[True, 8\]"),
        ("batches = [0]", "tokens are integers of at least 1, not 0"),
        ("batches = [true]", "tokens are integers of at least 1, not True"),
        ('batches = ["x"]', "tokens are integers of at least 1, not 'x'"),
        ("batches = [[1]]", r"tokens are integers of at least 1, not \[1\]"),
        ("batches = []", "`batches` is no list, or an empty one"),
        ("batches = 4", "`batches` is no list, or an empty one"),
        ('routings = ["zipf"]', "malformed routing"),
        ("routings = []", "`routings` is no list, or an empty one"),
        ('routings = "one"', "`routings` is no list, or an empty one"),
        ('name = ["a", 1]', "`name` is no text"),
        (f'name = "{"a" * 201}"', "a name has 201 characters, 'aaaaaaaaaaaaaaaaaaaa'…: 200 at most"),
        ("width = 3", "width"),
    ],
)
def test_a_suite_of_experts_that_says_something_else_is_refused(wrong: str, reason: str) -> None:
    lines = ['routings = ["one"]', "batches = [4]", "[[expert]]", 'name = "in"', "n = 64", "k = 32", "experts = [2, 8]"]
    assert parse_suite("right", "\n".join(lines)).problems == ["8x8x64x32:bf16:one"]
    at = next((at for at, line in enumerate(lines) if line.split()[0] == wrong.split()[0]), len(lines))
    with pytest.raises(ProblemError, match=reason):
        parse_suite("wrong", "\n".join([*lines[:at], wrong, *lines[at + 1 :]]))


def test_the_models_and_the_others_are_there() -> None:
    models = {"deepseek-v3", "llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-8b", "qwen3-30b-a3b"}
    assert models | {"squares", "odd", "recorded"} <= set(suite_names())
    for name in models:
        assert find_suite(name).phases == list(PHASES)


def test_the_parameters_of_the_models_add_up() -> None:
    """Products of the layers, and the embedding: what is missing are norms, well below 1 %."""
    billions = {"llama3-8b": 8.03, "llama3-70b": 70.55, "qwen3-8b": 8.19, "qwen3-32b": 32.76, "mixtral-8x7b": 46.7,
                "qwen3-30b-a3b": 30.5, "deepseek-v3": 671.0}  # fmt: skip
    for name, parameters in billions.items():
        decode = [(entry, GemmProblem.parse(entry.problem)) for entry in find_suite(f"{name}:decode").entries]
        first = {entry.label: (entry.count, problem) for entry, problem in decode if problem.m == 1}
        layers = sum(count * problem.n * problem.k for count, problem in first.values())
        _, vocabulary = first["vocabulary"]
        total = layers + vocabulary.n * vocabulary.k  # the embedding is as large
        assert total / 1e9 == pytest.approx(parameters, rel=0.01), name


def test_products_become_problems_phase_by_phase() -> None:
    suite = parse_suite("model", MODEL)
    decode = [(str(entry.problem), entry.label, entry.count) for entry in suite.entries if entry.phase == "decode"]
    assert decode == [
        ("1x6144x2048:bf16", "in", 3), ("1x768x2048:bf16", "expert", 1),
        ("64x6144x2048:bf16", "in", 3), ("16x768x2048:bf16", "expert", 1),
    ]  # fmt: skip
    training = {entry.label: str(entry.problem) for entry in suite.entries if entry.phase == "training"}
    assert training == {
        "in": "4096x6144x2048:bf16",
        "in, gradient of the input": "4096x2048x6144:bf16:kn",
        "in, gradient of the weight": "6144x2048x4096:bf16:mn",
        "expert": "1024x768x2048:bf16",
        "expert, gradient of the input": "1024x2048x768:bf16:kn",
        "expert, gradient of the weight": "768x2048x1024:bf16:mn",
    }
    assert suite.phases == ["decode", "training"]


SIZE = st.integers(1, 10**4)


@given(
    sizes=st.lists(st.tuples(SIZE, SIZE, SIZE, SIZE, st.integers(1, 99)), min_size=1, max_size=5),
    text=st.text(max_size=20),
    phases=st.lists(st.sampled_from(["", "swiglu", "scaled"]), min_size=5, max_size=5),
)
def test_what_is_written_is_read(sizes: list[tuple[int, int, int, int, int]], text: str, phases: list[str]) -> None:
    entries = [
        Entry(str(GemmProblem(m, n, k, batch)), text, phase, count)
        for (m, n, k, batch, count), phase in zip(sizes, phases, strict=False)
    ]
    read = parse_suite("x", write_suite(text, text, entries))
    assert [(entry.problem, entry.phase, entry.count) for entry in read.entries] == [
        (entry.problem, entry.phase, entry.count) for entry in entries
    ]
    if text.isprintable():
        assert (read.title, read.entries[0].label) == (text, text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "it has no problems"),
        ("problems = 3", "malformed suite"),
        ("problems = [3]", "malformed suite bad: each of `problems` is a text or a table with the key problem, not 3"),
        ('problems = "8x8x8"', "malformed suite bad: `problems` is no list"),
        ('[problems]\n"8x8x8" = 1', "malformed suite bad: `problems` is no list"),
        ('[tokens]\ndecode = "12"\n[[product]]\nname = "x"\nn = 8\nk = 8', "malformed suite bad: tokens are integers"),
        ('[tokens]\ndecode = [0]\n[[product]]\nname = "x"\nn = 8\nk = 8', "tokens are integers of at least 1, not 0"),
        ('[tokens]\ndecode = [1.5]\n[[product]]\nname = "x"\nn = 8\nk = 8', "tokens are integers of at least 1, not 1"),
        ("tokens = 3", r"malformed suite bad: numbers of tokens stand under \[tokens\]"),
        ("product = 3", r"each product under \[\[product\]\]"),
        ('problems = [{ problem = "8x8x8", phase = 3 }]', "malformed suite"),
        ('problems = ["8x8"]', "malformed problem '8x8'"),
        ('problem = ["8x8x8"]', "unknown key 'problem', known are batches, dtype, expert, problems"),
        ('problems = [{ problem = "8x8x8", count = 0 }]', "a count is an integer from 1 to 2147483647, not 0"),
        ("[tokens]\nverify = [1]", "unknown key 'verify', known are decode, prefill, training"),
        ("[tokens]\ndecode = [1]\n[[product]]\nn = 8\nk = 8\nm = 3", "unknown key 'm'"),
        ("[tokens]\ndecode = [1]\n[[product]]\nn = 8\nk = 8", "malformed suite bad: 'name' is missing"),
        ('problems = [{ label = "x" }]', "malformed suite bad: 'problem' is missing"),
        ("[tokens]\ndecode = [1]\n[[product]]\nname = 3\nn = 8\nk = 8", "malformed suite bad: `name` is no text"),
        ('problems = ["8x8x8"]\ntitle = 3', "malformed suite bad: `title` is no text"),
        (f'problems = ["8x8x8"]\ntitle = 0x{"f" * 5000}', "malformed suite bad: `title` is no text"),
        (f'problems = ["8x8x8"]\nsource = 0x{"f" * 5000}', "malformed suite bad: `source` is no text"),
        ("= 3", "malformed suite"),
    ],
)
def test_a_malformed_suite_is_refused(text: str, answer: str) -> None:
    with pytest.raises(ProblemError, match=answer):
        parse_suite("bad", text).parsed(GemmProblem.parse)


@pytest.mark.parametrize("experts", ["[9, 8]", "[0, 8]", "[1, 1e308]", "[1]", "8"])
def test_a_token_goes_to_no_more_experts_than_there_are(experts: str) -> None:
    text = f'[tokens]\ndecode = [16]\n[[product]]\nname = "x"\nn = 8\nk = 8\nexperts = {experts}'
    with pytest.raises(ProblemError, match=r"experts = \[A, E\] are integers, A from 1 to E, not "):
        parse_suite("bad", text)


def test_a_suite_is_read_by_the_template_that_is_asked() -> None:
    suite = parse_suite("rows", 'problems = ["8192x4096", "8192x4096:bf16", "64x50257:fp32"]')
    problems = suite.parsed(find_template("softmax_sm90").parse)
    assert problems == [RowwiseProblem(8192, 4096, "bf16"), RowwiseProblem(64, 50257, "fp32")]
    with pytest.raises(ProblemError, match="suite rows: malformed problem '8192x4096': expected MxNxK"):
        suite.parsed(find_template("gemm_sm90").parse)
    with pytest.raises(ProblemError, match=r"suite squares: malformed problem .* expected ROWSxCOLUMNS"):
        find_suite("squares").parsed(find_template("softmax_sm90").parse)


def test_unknown_suites_and_phases_are_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="unknown suite 'llama', known are deepseek-v3, experts, ground-truth, "):
        find_suite("llama")
    with pytest.raises(ProblemError, match="suite squares has nothing of decode, it has no phases"):
        find_suite("squares:decode")
    with pytest.raises(ProblemError, match="suite qwen3-8b has nothing of noon, it has decode, prefill, training"):
        find_suite("qwen3-8b:noon")
    with pytest.raises(ProblemError, match="can't read the suite"):
        find_suite(str(tmp_path / "none.toml"))
    (tmp_path / "own.toml").write_text(MODEL)
    assert len(find_suite(f"{tmp_path / 'own.toml'}:decode").entries) == 4


def test_the_shipped_files_are_toml_with_a_title() -> None:
    for path in (Path(__file__).resolve().parents[2] / "spaces" / "suites").iterdir():
        assert path.suffix == ".toml"
        assert tomllib.loads(path.read_text())["title"]
