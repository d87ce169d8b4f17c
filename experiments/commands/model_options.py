"""Options of commands that train cost models, and what the models are in words."""

import click

from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.persistence import ModelCard
from tilescout.costmodel.ranking import RankingOptions
from tilescout.spaces.texts import number_of

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


def learned_from(card: ModelCard, space: str, device: str) -> str:
    """The measurements that a model learned from, and where they are of another space or device, of which."""
    other = "" if card.space == space else f" of {card.space}"
    place = "" if card.device == device else f" on {card.device}"
    return f"{number_of(card.rows, 'measurement')} of {number_of(len(card.problems), 'problem')}{other}{place}"
