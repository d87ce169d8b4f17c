"""Options of commands that train cost models."""

import click

from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.ranking import RankingOptions

trees_option = click.option(
    "--trees", type=click.IntRange(min=1), default=ForestOptions.trees, show_default=True, help="Trees of the forest."
)
steps_option = click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=RankingOptions.steps,
    show_default=True,
    help="Steps of the fit of the networks.",
)
