"""`learnloop engine`: the engine without the service."""

import typer

FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All flags, `--help` among them, are left to the engine's own parser."""


def engine(context: typer.Context) -> None:
    """Run the engine alone, for ART or any OpenAI client; `learnloop engine --help` lists its flags."""
    from training.engine.__main__ import main

    raise typer.Exit(main(context.args, "learnloop engine"))
