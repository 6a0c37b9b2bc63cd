"""What every test in the repository needs, be it the service's or a plug-in's."""

pytest_plugins = ["tests.fixtures", "tests.workers", "tests.fakes.forked_checks"]
