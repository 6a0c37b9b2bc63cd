"""The demo with a base model that others made, with the tiny one's files in its place."""

import shutil
from pathlib import Path

import pytest

from learnloop_service.app.cli.demo.base import add_found, find_base
from learnloop_service.app.cli.demo.own_data import OwnData
from learnloop_service.app.cli.demo.real_base import Device, RealBase, prepare_real_base
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import load_settings
from learnloop_service.training.bases.files import base_model_fault, place_of_added
from learnloop_service.training.engine.__main__ import TINY_BASE
from learnloop_service.training.engine_flags import parse_open
from tests.fakes.hub_server import hub_server
from tests.integration.cli.conftest import Learnloop

pytestmark = pytest.mark.usefixtures("forked_checks", "forked_services")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_BASE, tmp_path / "Some Base"))


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no-programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_what_it_needs_and_does_nothing(learnloop: Learnloop, base: Path, tmp_path: Path) -> None:
    ran = learnloop("demo", "--base-model", str(base), "--data-dir", str(tmp_path / "demo"))
    text = " ".join(ran.stderr.split())
    assert ran.exit_code == 1
    assert "no GPU was found" in text
    assert "GB of memory" in text
    assert "million parameters, all weights trained" in text
    assert "--device cpu" in text
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("no_gpu")
def test_a_given_device_is_used_without_looking_for_it(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, place_of_added(tmp_path / "demo", "mine"))
    for device in Device:
        real = prepare_real_base("mine", "email_search", (), device, tmp_path / "demo")
        assert (real.name, real.data.name) == ("mine", None)
        assert parse_open(real.variables["LEARNLOOP_ENGINE_ARGS"].split()).device == device


def test_what_cannot_be_is_refused_in_one_line(learnloop: Learnloop, base: Path, tmp_path: Path) -> None:
    on_cpu = ("--device", "cpu", "--data-dir", str(tmp_path / "demo"))
    (tmp_path / "empty").mkdir()
    for arguments, why in {
        ("--base-model", "no-such-model", *on_cpu): "there is no base model 'no-such-model'",
        ("--base-model", str(tmp_path / "empty"), *on_cpu): "holds neither a config.json nor exactly one GGUF file",
        ("--device", "cpu"): "need --base-model",
    }.items():
        ran = learnloop("demo", *arguments)
        assert (ran.exit_code, why in " ".join(ran.stderr.split())) == (1, True), (arguments, ran.stderr)
        assert "Traceback" not in ran.stderr


def test_the_request_asks_all_test_questions_and_leaves_other_settings_to_the_service() -> None:
    real = RealBase("other", OwnData("demo-mail@1", 60, 14), {})
    options = {"environment": {"name": "email_search"}, "iterations": None, "seed": 3}
    request = LearnLoopRequest.model_validate(real.request(options))
    assert request.model_fields_set == {"environment", "model", "seed", "evaluation"}
    assert request.evaluation.model_dump(exclude_unset=True) == {"test_scenarios": 14}
    assert request.environment.config == {"inbox": "demo-mail@1"}
    assert request.model.base_model == "other"


def test_changed_files_are_another_base_model(base: Path, tmp_path: Path) -> None:
    model = find_base(str(base), tmp_path / "demo", tmp_path / "usual")
    assert model.name.startswith("some-base-")
    shutil.copytree(base, place_of_added(tmp_path / "demo", model.name))
    assert find_base(str(base), tmp_path / "demo", tmp_path / "usual").is_added
    assert find_base(model.name, tmp_path / "demo", tmp_path / "usual").is_added
    (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    changed = find_base(str(base), tmp_path / "demo", tmp_path / "usual")
    assert (changed.is_added, changed.name == model.name) == (False, False)


def test_names_are_those_of_the_usual_data_directory_and_of_the_hub(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, place_of_added(tmp_path / "usual", "mine"))
    model = find_base("mine", tmp_path / "demo", tmp_path / "usual")
    assert (model.source, model.is_added) == (place_of_added(tmp_path / "usual", "mine"), False)
    model = find_base("Some/Model-1B", tmp_path / "demo", tmp_path / "usual")
    assert (model.hub_id, model.name, model.source) == ("Some/Model-1B", "some-model-1b", None)


@pytest.mark.long
def test_a_model_of_the_hub_is_downloaded_and_added(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server() as hub:
        hub.models["some/model-1b"] = {path.name: path.read_bytes() for path in base.iterdir()}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = load_settings(data_dir=tmp_path / "demo")
        add_found(find_base("some/model-1b", settings.data_dir, tmp_path / "usual"), settings)
        assert base_model_fault(place_of_added(settings.data_dir, "some-model-1b")) is None
        assert not any("README.md" in request for request in hub.requests)
        request_count = len(hub.requests)
        model = find_base("some/model-1b", settings.data_dir, tmp_path / "usual")
        add_found(model, settings)
        assert (model.is_added, len(hub.requests)) == (True, request_count)
        with pytest.raises(Failure, match="has no model some/other"):
            add_found(find_base("some/other", settings.data_dir, tmp_path / "usual"), settings)
