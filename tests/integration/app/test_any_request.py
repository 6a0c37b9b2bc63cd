"""Whatever is sent to any operation of the OpenAPI file: no error of ours, and every reply is a documented one."""

from copy import deepcopy
from pathlib import Path

import pytest

from benchmarks.service.api_fuzz import fuzz
from learnloop_service.app.auth.scopes import is_public, model_path
from learnloop_service.app.http import openapi
from learnloop_service.environment.json_type import Json

EXAMPLES = 2
"""Of each operation; `python -m benchmarks.service.api_fuzz` makes more of more kinds."""


@pytest.mark.long
async def test_no_request_makes_an_error_of_ours_or_an_undocumented_reply(data_dir: Path, database_url: str) -> None:
    result = await fuzz(data_dir, database_url, examples=EXAMPLES, seed=7, phases="fuzzing")
    assert result.violations == {}, result.output
    assert result.operations >= 48
    assert result.requests > 2 * result.operations


def test_every_error_is_described_as_a_problem(api: Json) -> None:
    assert openapi.described(deepcopy(api)) == api
    assert "HTTPValidationError" not in str(api)
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            replies = operation["responses"]
            if is_public(path):
                continue
            assert {"401", "403", "429", "503"} <= replies.keys(), (method, path)
            if method != "get" or ("{" in path and model_path(path) is None):
                assert "409" in replies, (method, path)
            if method == "post":
                assert "Idempotency-Key" in [parameter["name"] for parameter in operation["parameters"]]
            kind = "application/json" if model_path(path) is not None else "application/problem+json"
            for status, reply in replies.items():
                if int(status) >= 400:
                    assert [*reply["content"]] == [kind], (method, path, status)
