"""``tilescout report``: a study as one HTML page."""

from pathlib import Path

import click

from tilescout.experiments.commands.completion import complete_studies
from tilescout.experiments.commands.options import (
    examples,
    own_spaces_option,
    storage_option,
    store_option,
    told_of_own_spaces,
)
from tilescout.experiments.commands.outputs import STDOUT, check_output
from tilescout.search.studies.folders import studies
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.templates import load_templates
from tilescout.spaces.texts import number_of


@click.command(
    epilog=examples(
        "tilescout report gemm_sm90-4096x4096x4096-bf16-h200-live-sandwich-guided-s0",
        "tilescout report gemm_sm90-4096x4096x4096-bf16-h200-live-sandwich-guided-s0 --out page.html",
        "tilescout report results/studies/gemm_sm90-4096x4096x4096-bf16-h200-live-sandwich-guided-s0.journal",
    )
)
@click.argument("study", metavar="STUDY", shell_complete=complete_studies)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="The page; - for standard output. [default: STUDY.html]",
)
@click.option(
    "--model", type=click.Path(path_type=Path), help="Show what this cost model predicts beside what was measured."
)
@own_spaces_option
@store_option
@storage_option
def report(
    study: str, out: Path | None, model: Path | None, own_spaces: tuple[str, ...], store: Path, storage: str | None
) -> None:
    """Write STUDY, the name of one in the store or a journal, as one HTML page.

    The page is one file with its plots in it and loads nothing from elsewhere, so it can be mailed and printed. A study
    that is still running, or was killed, is shown as far as it has come.
    """
    import optuna

    from tilescout.search.studies.places import read_study
    from tilescout.search.tracking.page import GENERATOR, to_html

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    target = out if out is not None else Path(f"{Path(study.removesuffix('.journal')).name}.html")
    if target != STDOUT:
        check_output(target, "a page of a study", lambda path: GENERATOR in path.read_bytes()[:1000])
    named = load_templates(own_spaces)
    result = read_study(study, studies(store, storage), named)
    if model is not None:
        from tilescout.search.studies.predicted import with_expected

        with told_of_own_spaces():
            result = with_expected(result, model, named)
    page = to_html(result).encode()
    if target == STDOUT:
        click.echo(page, nl=False)
        return
    write_whole(target, page)
    click.echo(f"{target}: {number_of(len(result.trials), 'trial')}, {len(page) / 1e3:.0f} kB", err=True)
