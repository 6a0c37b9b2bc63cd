"""`python -m app.cli`: the same as the command `learnloop`."""

from app.cli.main import main

main()
