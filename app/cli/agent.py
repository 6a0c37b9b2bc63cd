"""`learnloop agent`: the command of the Python client, `learnloop-agent`."""

import typer


def agent(context: typer.Context) -> None:
    """Let your own agent do the tasks of runs: `learnloop agent run -- CMD` starts CMD for each of them.

    It is the same as `learnloop-agent`, which the package `learnloop-client` has; `learnloop agent run --help` lists
    its flags.
    """
    from learnloop.agent_command import main

    raise typer.Exit(main(context.args, "learnloop agent"))
