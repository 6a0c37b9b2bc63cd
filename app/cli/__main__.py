"""`python -m learnloop_service.app.cli`: the same as the command `learnloop`."""

from learnloop_service.app.cli.main import main

main()
