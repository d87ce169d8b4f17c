"""The problems that a model learns from: drawn again by the same seed, and none of a model that judges."""

from pathlib import Path

from click.testing import CliRunner

from tilescout.experiments.research.studies.draw_problems import pooled
from tilescout.experiments.research.studies.draw_spread import MOST_BYTES, MOST_FLOP, PROBLEMS, drawn, main
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import complement_of, find_template

SUITES = Path(__file__).resolve().parents[3] / "spaces" / "suites"


def test_the_shipped_suite_is_what_its_seed_draws(tmp_path: Path) -> None:
    out = tmp_path / "drawn.toml"

    done = CliRunner().invoke(main, ["--out", str(out), "--seed", "0"])

    assert done.exit_code == 0, done.output
    assert out.read_text() == (SUITES / "spread.toml").read_text()


def test_sizes_of_another_range_are_drawn_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "many.toml"

    done = CliRunner().invoke(main, ["--out", str(out), "--rows", "2048", "4096", "--columns", "512", "640"])

    assert done.exit_code == 0, done.output
    found = [GemmProblem.parse(entry.problem) for entry in find_suite(str(out)).entries]
    assert len(found) == PROBLEMS
    assert all(2048 <= problem.m <= 4096 and 512 <= problem.n <= 640 for problem in found)
    assert len({problem.m for problem in found}) > PROBLEMS / 2
    assert "m from 2048 to 4096, n from 512 to 640, k from" in out.read_text()


def test_rounder_widths_are_drawn_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "round.toml"

    done = CliRunner().invoke(main, ["--out", str(out), "--multiple", "256"])

    assert done.exit_code == 0, done.output
    found = [GemmProblem.parse(entry.problem) for entry in find_suite(str(out)).entries]
    rounder = [problem.n % 256 == 0 and problem.k % 256 == 0 for problem in found]
    assert PROBLEMS / 2 < sum(rounder) < PROBLEMS
    assert "most n and k multiples of 256" in out.read_text()


def test_a_range_that_falls_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--out", str(tmp_path / "many.toml"), "--depth", "512", "256"])

    assert done.exit_code == 2
    assert "512, is above the most, 256" in done.output


def test_only_problems_that_have_a_second_search_are_drawn_if_asked(tmp_path: Path) -> None:
    out, template = tmp_path / "drawn.toml", find_template("gemm_sm90")

    done = CliRunner().invoke(main, ["--out", str(out), "--beside", "gemm_sm90", "--problems", "3"])

    assert done.exit_code == 0, done.output
    found = [GemmProblem.parse(entry.problem) for entry in find_suite(str(out)).entries]
    assert len(found) == 3
    assert all(complement_of(template, problem, find_device("h200")) is not None for problem in found)


def test_none_is_drawn_twice_or_too_large_or_of_a_published_model() -> None:
    problems = [GemmProblem.parse(entry.problem) for entry in drawn(1)]

    assert len(set(problems)) == len(problems) == PROBLEMS
    assert not {(problem.n, problem.k) for problem in problems} & pooled()
    assert all(2 * each.m * each.n * each.k <= MOST_FLOP for each in problems)
    assert all(2 * (each.m * each.n + each.m * each.k + each.n * each.k) <= MOST_BYTES for each in problems)
