"""The problems that nothing is chosen on: drawn again by the same seed, and none of them known."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.research.studies.draw_problems import (
    EACH,
    KINDS,
    NAME,
    NEWEST,
    POOLS,
    drawn,
    known_products,
    main,
    sizes_of,
)
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import find_suite

SUITES = Path(__file__).resolve().parents[3] / "spaces" / "suites"


def test_the_shipped_suite_is_what_its_seed_draws(tmp_path: Path) -> None:
    out = tmp_path / "drawn.toml"

    done = CliRunner().invoke(main, ["--out", str(out), "--seed", "0", "--pool", "published"])

    assert done.exit_code == 0, done.output
    assert out.read_text() == (SUITES / f"{NAME}.toml").read_text()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(5))
def test_forty_problems_are_drawn_none_twice_and_none_of_a_known_product(seed: int, pool: str) -> None:
    problems = [GemmProblem.parse(entry.problem) for entry in drawn(seed, pool)]

    assert len(set(problems)) == len(problems) == EACH * len(KINDS)
    assert not {(problem.n, problem.k) for problem in problems} & known_products()


def test_no_shipped_table_but_its_own_holds_one_of_the_problems() -> None:
    drawn_ones = set(find_suite(NAME).parsed(GemmProblem.parse))
    for path in shipped_tables():
        if NAME not in path.stem:
            assert not drawn_ones & set(Table.read(path).problems)


def test_the_kinds_are_what_they_say() -> None:
    of_kind: dict[str, list[GemmProblem]] = {kind: [] for kind in KINDS}
    for entry in drawn(0, "published"):
        of_kind[entry.label.rpartition(", ")[2]].append(GemmProblem.parse(entry.problem))

    assert all(len(problems) == EACH for problems in of_kind.values())
    assert all(problem.m <= 64 for problem in of_kind["decode"])
    assert all(512 <= problem.m <= 8192 for problem in of_kind["prefill"])
    assert all(problem.m % 2 for problem in of_kind["odd"])
    assert all(problem.n > 30_000 for problem in of_kind["wide"])
    assert all(problem.k >= 16 * problem.n for problem in of_kind["deep-k"])


def test_the_further_pool_has_no_product_of_the_first_or_of_a_suite_or_that_a_model_learned_from() -> None:
    first, further = map(sizes_of, POOLS)
    learned = set()
    for space in ("gemm_sm90", "gemm_streamk_sm90"):
        path = shipped_model(space, "h200")
        assert path is not None
        learned |= {(problem.n, problem.k) for problem in map(GemmProblem.parse, load_model(path)[1].problems)}

    assert list(POOLS)[-1] == NEWEST
    assert len(further) > 80
    assert not further & (first | known_products() | learned)
