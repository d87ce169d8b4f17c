"""The study of how often the library promotes 8-bit sums: on a CPU, which adds up in fp32, nothing is lost."""

from tilescout.experiments.research.studies.library_promotion import changes, kept_at
from tilescout.spaces.gemm import GemmProblem


def test_a_library_that_adds_up_in_fp32_keeps_every_product() -> None:
    places, kept = kept_at(GemmProblem.parse("16x32x64:e4m3"), False, "cpu")
    assert (places[0], places[-1]) == (1, 62)
    assert kept == [True] * 32


def test_changes_are_where_products_begin_or_cease_to_be_kept() -> None:
    assert changes([1, 128, 256], [False, True, True]) == [(1, False), (128, True)]
