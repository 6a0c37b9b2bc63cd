"""`learnloop openapi` prints the API, without a service."""

from tests.integration.app.api_file import current_api
from tests.integration.cli.conftest import Learnloop


def test_it_is_the_api_of_this_version(learnloop: Learnloop) -> None:
    assert learnloop("openapi").json == current_api()


def test_types_of_every_schema(learnloop: Learnloop) -> None:
    ran = learnloop("openapi", "--typescript")
    assert ran.exit_code == 0
    assert "\nexport interface RunOut {\n" in ran.stdout
    assert '\nexport interface PostLearnLoopBody {\n  "name"?: ' in ran.stdout
