"""`learnloop bases` in a data directory."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.cli.service_process import free_port
from tests.fakes import defective_bases
from tests.fakes.hostile_bases import hostile_base
from tests.fakes.hub_server import HubServer, hub_server
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.cli.conftest import Learnloop

pytestmark = pytest.mark.usefixtures("forked_checks")


def test_a_model_is_added_listed_and_removed(learnloop: Learnloop, tmp_path: Path) -> None:
    source, where = make_tiny_model(tmp_path / "source"), ("--data-dir", str(tmp_path / "data"))
    added = learnloop("bases", "add", "mine", str(source), "--prompts", "0", *where, "--json").json
    assert learnloop("bases", "list", *where, "--json").json == [added]
    assert (added["name"], added["fault"]) == ("mine", None)
    (Path(added["path"]) / "tokenizer.json").unlink()
    assert "there is no tokenizer" in learnloop("bases", "list", *where).stdout.replace("\n", " ")
    assert learnloop("bases", "remove", "mine", *where).exit_code == 0
    assert learnloop("bases", "list", *where, "--json").json == []


def test_bad_names_and_sources_are_refused_in_one_line(learnloop: Learnloop, tmp_path: Path) -> None:
    for arguments, message in (
        (("add", "../up", "."), "is no name for a base model"),
        (("add", "other"), "say where the model lies"),
        (("add", "mine", str(tmp_path)), "neither a config.json nor exactly one GGUF file"),
        (("remove", "mine"), "no base model 'mine' was added"),
    ):
        ran = learnloop("bases", *arguments, "--data-dir", str(tmp_path / "data"))
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert message in ran.stderr
    assert list((tmp_path / "data").glob("bases/*")) == []


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one model, whose repository also has code and a pickle."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {path.name: path.read_bytes() for path in make_tiny_model(tmp_path / "source").iterdir()}
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.models["Some/Model-1B"] = files | {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
        yield server


@pytest.mark.long
def test_a_model_of_the_hub_is_added_without_code_and_without_leavings(
    learnloop: Learnloop, hub: HubServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    where = ("--prompts", "0", "--data-dir", str(data))
    added = learnloop("bases", "add", "Some/Model-1B", *where, "--json").json
    assert (added["name"], added["fault"]) == ("model-1b", None)
    assert not any(name in request for request in hub.requests for name in ("modeling.py", "pytorch_model.bin"))
    assert [path.name for path in data.iterdir() if path.name.startswith(".")] == []
    again = learnloop("bases", "add", "Some/Model-1B", *where)
    assert (again.exit_code, "of the name model-1b already" in " ".join(again.stderr.split())) == (1, True)
    other = learnloop("bases", "add", "mine", "Some/Model-1B", *where)
    assert other.exit_code == 0, other.stderr
    assert {base["name"] for base in learnloop("bases", "list", "--data-dir", str(data), "--json").json} == {
        "model-1b",
        "mine",
    }


def test_a_hub_that_does_not_give_it_is_one_sentence_and_leaves_nothing(
    learnloop: Learnloop, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"

    def refused(model: str = "Some/Model-1B") -> str:
        ran = learnloop("bases", "add", model, "--prompts", "0", "--data-dir", str(data))
        assert (ran.exit_code, ran.stdout, "Traceback" in ran.stderr) == (1, "", False)
        assert not data.exists() or [path for path in data.rglob("*") if path.is_file()] == []
        return " ".join(ran.stderr.split())

    assert "has no model Some/Other, or only for those with a token (HF_TOKEN)" in refused("Some/Other")
    hub.models["Some/Pickle"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    assert "no weights as safetensors files" in refused("Some/Pickle")
    hub.gated.add("Some/Model-1B")
    assert "accept them at" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    assert "set HF_TOKEN to a token of that account" in (message := refused())
    assert "hf_of_someone_else" not in message
    monkeypatch.delenv("HF_TOKEN")
    hub.gated.clear()
    hub.cut_off.add("model.safetensors")
    assert "cannot be fetched" in refused()
    hub.cut_off.clear()
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
        assert "GB of disk while it is added, and 0.0 GB are free" in refused()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert "cannot be fetched" in refused()


def _severities(base: dict[str, Any]) -> dict[str, str]:
    return {finding["name"]: finding["severity"] for finding in base["report"]["findings"]}


@pytest.mark.long
def test_what_is_added_is_examined_mended_and_asked_for_calls(learnloop: Learnloop, tmp_path: Path) -> None:
    source, where = defective_bases.with_untrained(tmp_path / "source"), ("--data-dir", str(tmp_path / "data"))
    ran = learnloop("bases", "add", "mine", str(source), "--prompts", "2", "--device", "cpu", *where)
    assert ran.exit_code == 0, ran.stderr
    phases = ("copying bytes", "examining it", "loading it for the probe", "asking it for calls on cpu")
    assert [phase for phase in phases if phase not in ran.stderr] == []
    assert "were never trained as tokens; in the copy they are ordinary text" in ran.stdout
    assert "It writes no tool call in any format (2 prompts each)" in ran.stdout
    [counted] = learnloop("bases", "list", *where, "--json").json
    assert _severities(counted) == {
        **dict.fromkeys(("size", "stop tokens", "template", "conversation"), "ok"),
        **dict.fromkeys(("stop tokens added", "marks"), "note"),
        "calls": "warning",
    }
    assert [counts["calls"] + counts["malformed"] + counts["no_call"] for counts in counted["report"]["probe"]] == [
        2
    ] * 3
    assert (counted["tool_format"], counted["fault"]) == (None, None)
    assert "warning: calls" in learnloop("bases", "list", *where).stdout
    [again] = learnloop("bases", "check", "mine", "--prompts", "0", *where, "--json").json
    assert again["report"]["probe"] == counted["report"]["probe"]  # the same files write the same
    assert _severities(again)["calls"] == "warning"


@pytest.mark.long
def test_a_configured_base_is_examined_where_it_is(
    learnloop: Learnloop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = defective_bases.with_untrained(tmp_path / "good"), tmp_path / "bad"
    hostile_base(bad, "a shape that is a word")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in good.iterdir())
    monkeypatch.setenv("LEARNLOOP_ENGINE_BASE_MODELS", f"good={good},bad={bad}")
    where = ("--prompts", "0", "--data-dir", str(tmp_path / "data"))
    ran = learnloop("bases", "check", "good", *where, "--json")
    assert (ran.exit_code, [examined["name"] for examined in ran.json]) == (0, ["good"])
    assert _severities(ran.json[0])["marks"] == "warning"
    assert sorted((path.name, path.stat().st_mtime_ns) for path in good.iterdir()) == before
    both = learnloop("bases", "check", *where)
    assert both.exit_code == 1
    assert "model.safetensors: its header is damaged" in both.stdout
    assert "`learnloop bases add` makes them ordinary text in its copy." in both.stdout
    unknown = learnloop("bases", "check", "other", *where)
    assert (unknown.exit_code, "no base model 'other'" in unknown.stderr) == (1, True)
