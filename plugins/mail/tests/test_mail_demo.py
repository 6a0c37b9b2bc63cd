"""`learnloop demo --mailbox`, with the tiny base model's files in the place of one that others made."""

import shutil
from pathlib import Path

import pytest

from learnloop_service.app.cli.demo.own_data import own_data, prepared_data
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.app.settings import load_settings
from learnloop_service.training.engine.__main__ import TINY_BASE
from tests.fakes.mailboxes import archive
from tests.integration.cli.conftest import Learnloop

pytestmark = pytest.mark.usefixtures("forked_checks", "forked_services")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_BASE, tmp_path / "Some Base"))


def test_mail_that_cannot_be_used_is_refused_in_one_line(learnloop: Learnloop, base: Path, tmp_path: Path) -> None:
    on_cpu = ("--device", "cpu", "--data-dir", str(tmp_path / "demo"))
    for arguments, why in {
        ("--base-model", str(base), "--mailbox", str(tmp_path / "gone.mbox"), *on_cpu): "gone.mbox",
        ("--mailbox", "a.mbox"): "--mailbox and --device need --base-model: the included model learns from invented",
        (
            "--base-model", str(base), "--environment", "agent", "--mailbox", "a.mbox"
        ): "--mailbox is for the environment email_search, not agent",
    }.items():  # fmt: skip
        ran = learnloop("demo", *arguments)
        assert (ran.exit_code, why in " ".join(ran.stderr.split())) == (1, True), (arguments, ran.stderr)
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("versions", [0, 2])
def test_prepared_mail_is_found_by_its_name(learnloop: Learnloop, tmp_path: Path, versions: int) -> None:
    for number in range(versions):
        archive(tmp_path / "a.mbox", 60 + number)
        arguments = (
            "--emails",
            str(tmp_path / "a.mbox"),
            "--question-count",
            "90",
            "--data-dir",
            str(tmp_path / "data"),
        )
        prepared = learnloop("data", "prepare", "mine", *arguments, "--json").json
    if not versions:
        with pytest.raises(Failure, match="learnloop data prepare mine"):
            prepared_data("mine", tmp_path / "data")
        return
    data = prepared_data("mine", tmp_path / "data")
    assert (data.name, data.emails, data.test_questions) == ("mine@2", 61, prepared["scenarios"]["test"])


@pytest.mark.long
def test_a_base_model_learns_from_a_mailbox(learnloop: Learnloop, base: Path, tmp_path: Path) -> None:
    archive(tmp_path / "a.mbox", 45)
    ran = learnloop(
        "demo", "--base-model", str(base), "--mailbox", str(tmp_path / "a.mbox"), "--device", "cpu",
        "--iterations", "1", "--data-dir", str(tmp_path / "demo"), "--json",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    document, settings = ran.json, load_settings(data_dir=tmp_path / "demo")
    assert document["model"]["base_model"].startswith("some-base-")
    assert document["verdict"]["text"]
    assert len(document["answers"]) == 3
    held_out = document["held_out"]
    assert held_out["split"] == "test"
    assert held_out["scenarios"] == own_data("email_search", [str(tmp_path / "a.mbox")], settings).test_questions
    assert all(0 <= held_out[mode][when] <= 1 for mode in ("sampled", "greedy") for when in ("before", "after"))
