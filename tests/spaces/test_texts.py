"""Names in the place of one that is not known."""

from tilescout.spaces.texts import alternatives, number_of, some_of

STUDIES = [f"gemm-{m}x{n}-tpe-s0" for m in (16, 512, 4096) for n in (64, 512, 8192)]


def test_a_few_names_are_all_told_in_their_order_and_none_is_said() -> None:
    assert alternatives("gemm", ["random", "tpe", "gp"]) == "random, tpe, gp"
    assert alternatives("gemm", []) == "none"


def test_of_many_names_those_most_alike_are_told_and_how_many_more_there_are() -> None:
    said = alternatives("gemm-4096x8192-tpe", STUDIES, most=2)
    assert said.startswith("gemm-4096x8192-tpe-s0, ")
    assert said.endswith(" and 7 more")
    assert said.count("gemm-") == 2


def test_of_many_names_the_first_are_told_and_how_many_more_there_are() -> None:
    assert some_of(("a", "b"), 2) == "a, b"
    assert some_of(range(1234), 2) == "0, 1 and 1,232 more"


def test_one_thing_is_no_plural() -> None:
    assert [number_of(count, "range") for count in (0, 1, 2, 1000)] == [
        "0 ranges",
        "1 range",
        "2 ranges",
        "1,000 ranges",
    ]
    assert [number_of(count, "search", "searches") for count in (1, 2)] == ["1 search", "2 searches"]
