"""Documents as the ledger reads them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tilescout.experiments.research.claims.documents import Document

WORDS = st.text(alphabet="ab7\n\t \u2003\u00d7", max_size=60)


@given(WORDS)
def test_white_space_is_single_spaces_and_each_character_knows_the_line_of_the_file_that_it_stands_in(
    source: str,
) -> None:
    document = Document.parse("page.md", source)
    assert document.text == re.sub(r"\s+", " ", source).lstrip()
    lines = source.split("\n")
    for character, line in zip(document.text, document.lines, strict=True):
        assert character == " " or character in lines[line - 1]
    assert list(document.lines) == sorted(document.lines)
    shown = [character for character in source if not character.isspace()]
    assert shown == [character for character in document.text if character != " "]


def test_blocks_of_code_comments_and_the_targets_of_links_are_left_out() -> None:
    source = "# A page\n\n```sh\nrun 7\n```\n<!-- 8\n9 -->\n1. See [a kernel](kernel-7.md) of 5\n"
    document = Document.parse("page.md", source)
    assert document.text == "# A page See a kernel of 5 "
    assert [(number.digits, number.line) for number in document.numbers()] == [("5", 8)]
