"""What a run is warned about from the stored examination of its base model."""

from pathlib import Path

import pytest

from learnloop_service.app.operations.start.base_model_warnings import base_model_findings, base_model_warnings
from learnloop_service.app.settings import Settings
from learnloop_service.training.bases.report import BaseReport, Finding, FindingSeverity, FormatCount
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from tests.fakes.tiny_model import make_tiny_model

_MARKS = Finding("marks", FindingSeverity.WARNING, "It cannot write its marks.", "Add it again.")
_SIZE = Finding("size", FindingSeverity.OK, "It has 3 parameters.")
_CALLS = Finding("calls", FindingSeverity.WARNING, "It writes no tool call in any format.", "Use demonstrations.")
_PROBE = (FormatCount("json", 2, 0, 0, {}),)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = make_tiny_model(tmp_path / "base")
    return Settings(data_dir=tmp_path / "data", engine_base_models={"mine": base}, _env_file=None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (None, ["examination"]),
        (BaseReport((_MARKS, _SIZE)), ["marks", "calls"]),
        (BaseReport((_SIZE, _CALLS)), ["calls"]),
        (BaseReport((_SIZE,), probe=_PROBE), []),
        (BaseReport((_SIZE, _MARKS), probe=_PROBE), ["marks"]),
    ],
)
def test_what_keeps_a_run_from_learning_is_named(
    settings: Settings, report: BaseReport | None, names: list[str]
) -> None:
    BaseVerdicts(settings.data_dir).keep(settings.base_models["mine"], BaseVerdict(None, report))
    assert [finding.name for finding in base_model_findings(settings, "embedded", "mine")] == names


def test_a_warning_says_what_was_found_and_what_to_do(settings: Settings) -> None:
    BaseVerdicts(settings.data_dir).keep(
        settings.base_models["mine"], BaseVerdict(None, BaseReport((_MARKS,), probe=_PROBE))
    )
    [warning] = base_model_warnings(settings, "embedded", "mine")
    assert warning == "The base model mine may not learn. It cannot write its marks. Add it again."


@pytest.mark.parametrize(
    ("backend", "name"), [("serverless", "mine"), ("embedded", "learnloop/tiny"), ("embedded", "mine@3")]
)
def test_what_is_not_ours_to_examine_has_no_findings(settings: Settings, backend: str, name: str) -> None:
    assert base_model_findings(settings, backend, name) == []


def test_an_engine_elsewhere_has_its_own_base_models(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"engine_url": "http://10.0.0.1:8100"})
    assert base_model_findings(elsewhere, "embedded", "mine") == []
