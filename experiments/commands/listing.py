"""Groups of commands that list by their name alone, as ``tilescout tables``."""

import click

LIST = "list"


class ListingGroup(click.Group):
    """A group whose command `list` is meant where none of its commands is named: `tables own.parquet` lists that."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in context.help_option_names)
        return super().parse_args(context, args if named else [LIST, *args])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = args[0] in self.commands
        return super().resolve_command(context, args if known else [LIST, *args])
