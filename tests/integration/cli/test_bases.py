"""`learnloop bases` in a data directory."""

from pathlib import Path

from tests.fakes.tiny_model import make_tiny_model
from tests.integration.cli.conftest import Learnloop


def test_a_model_is_added_listed_and_removed(learnloop: Learnloop, tmp_path: Path) -> None:
    source, where = make_tiny_model(tmp_path / "source"), ("--data-dir", str(tmp_path / "data"))
    added = learnloop("bases", "add", "mine", str(source), *where, "--json").json
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
