"""`learnloop bases` in a data directory."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import defective_bases
from tests.fakes.hostile_bases import hostile_base
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
    for arguments, said in (
        (("add", "../up", "."), "is no name for a base model"),
        (("add", "other"), "say where the model lies"),
        (("add", "mine", str(tmp_path)), "neither a config.json nor exactly one GGUF file"),
        (("remove", "mine"), "no base model 'mine' was added"),
    ):
        ran = learnloop("bases", *arguments, "--data-dir", str(tmp_path / "data"))
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert said in ran.stderr
    assert list((tmp_path / "data").glob("bases/*")) == []


def _severities(base: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["severity"] for each in base["report"]["findings"]}


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
    assert [each["calls"] + each["malformed"] + each["no_call"] for each in counted["report"]["probe"]] == [2] * 3
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
    assert (ran.exit_code, [each["name"] for each in ran.json]) == (0, ["good"])
    assert _severities(ran.json[0])["marks"] == "warning"
    assert sorted((path.name, path.stat().st_mtime_ns) for path in good.iterdir()) == before
    both = learnloop("bases", "check", *where)
    assert both.exit_code == 1
    assert "model.safetensors: its header is damaged" in both.stdout
    assert "`learnloop bases add` makes them ordinary text in its copy." in both.stdout
    unknown = learnloop("bases", "check", "other", *where)
    assert (unknown.exit_code, "no base model 'other'" in unknown.stderr) == (1, True)
