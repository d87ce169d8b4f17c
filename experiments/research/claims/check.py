"""Whether the documents state what the ledger holds, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

from tilescout.experiments.research.claims.documents import Document, document_names, read_document
from tilescout.experiments.research.claims.ledger import Ledger


def contradictions(root: Path, ledger: Ledger) -> list[str]:
    """Find what is wrong with the documents of a checkout, a line each.

    Parameters
    ----------
    root
        The checkout.
    ledger
        The ledger that its documents are held to.

    Returns
    -------
    list
        Figures that the ledger lacks or holds otherwise, and passages that no document states any more.
    """
    documents = [read_document(root, name) for name in document_names(root, (*ledger.whole, *ledger.openings))]
    known = {document.name for document in documents}
    unknown = sorted({name for _, statement in ledger.statements() for name in statement.documents} - known)
    whole = set(document_names(root, ledger.whole))
    return [
        *(f"the ledger names {name}, which is no document that is held to it" for name in unknown),
        *ledger.lost,
        *misstated(ledger),
        *(line for document in documents for line in passages_gone(document, ledger)),
        *(
            line
            for document in documents
            for line in without_reason(document if document.name in whole else document.opening(), ledger)
        ),
    ]


def misstated(ledger: Ledger) -> Iterator[str]:
    """Figures of passages that are not the values of the ledger, rounded as they are."""
    for _, statement in ledger.statements():
        for figure in statement.figures:
            owner = ledger.claims[figure.claim]
            value = owner.values[figure.key]
            if not figure.agrees(value, owner.tolerance):
                where = f"{', '.join(statement.documents)}: {figure.claim}.{figure.key}"
                yield f"{where} is {value:.6g}, stated is {figure.digits}: {statement.text}"


def passages_gone(document: Document, ledger: Ledger) -> Iterator[str]:
    """Passages of the ledger that a document does not state, word for word."""
    for claim, statement in ledger.statements():
        if document.name in statement.documents and next(document.places(statement.text), None) is None:
            yield f"{document.name} does not state what the ledger says that it does ({claim.name}): {statement.text}"


def without_reason(document: Document, ledger: Ledger) -> Iterator[str]:
    """Numbers of a document that are neither a figure of a statement nor part of a fact."""
    covered = _covered(document, ledger)
    for number in document.numbers():
        if not all(covered[number.start : number.end]):
            place = f"{document.name}:{number.line}"
            yield f"{place}: the ledger lacks {number.digits} in: … {document.around(number)} …"


def _covered(document: Document, ledger: Ledger) -> list[bool]:
    """Of each character of a document, whether a figure of a statement or a fact covers it."""
    covered = [False] * len(document.text)

    def cover(start: int, end: int) -> None:
        covered[start:end] = [True] * (end - start)

    for _, statement in ledger.statements():
        if document.name in statement.documents:
            for place in document.places(statement.text):
                cover(place + statement.named[0], place + statement.named[1])
                for figure in statement.figures:
                    cover(place + figure.start, place + figure.end)
    for fact in (*ledger.facts, *ledger.unpublished):
        if not fact.documents or document.name in fact.documents:
            for place in document.places(fact.text):
                cover(place, place + len(fact.text))
    return covered
