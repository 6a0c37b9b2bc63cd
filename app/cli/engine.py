"""`learnloop engine`: the engine without the service."""

import typer


def engine(context: typer.Context) -> None:
    """Run the engine alone, for ART or any OpenAI client; `learnloop engine --help` lists its flags."""
    from learnloop_service.training.engine.__main__ import main

    raise typer.Exit(main(context.args, "learnloop engine"))
