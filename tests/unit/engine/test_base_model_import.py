"""Base models that others made, put into a data directory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.gguf_file import write_gguf
from tests.fakes.tiny_model import make_tiny_model
from training.base_model_files import added_base_models, place_of_added
from training.engine.registry.base_model_import import CannotAdd, add, packaged
from training.engine.registry.registry import Registry
from training.engine.tokens import ChatTokenizer

TOLD = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When is the kickoff? 3 May, 12:30."}]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama") / "hf", "llama")


@pytest.fixture(scope="module")
def gguf(llama: Path) -> Path:
    return write_gguf(llama, llama.parent / "tiny.gguf")


def test_a_gguf_file_becomes_the_model_that_it_was_written_from(llama: Path, gguf: Path, tmp_path: Path) -> None:
    place = place_of_added(tmp_path, "tiny")
    add(gguf, place)
    expected, found = load_file(llama / "model.safetensors"), load_file(place / "model.safetensors")
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name].bfloat16())] == []
    assert ChatTokenizer(place).prompt(TOLD, None) == ChatTokenizer(llama).prompt(TOLD, None)


def test_an_engine_that_runs_has_what_is_added(llama: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path, {"learnloop/tiny": llama})
    add(llama, place_of_added(tmp_path, "mine"))
    assert registry.base_models == ["mine", "learnloop/tiny"]
    record = registry.create(project="mail", name="clerk", base_model="mine")
    assert record.base_model == "mine"
    assert registry.resolve("mine").directory == place_of_added(tmp_path, "mine")


def test_what_cannot_be_added_leaves_nothing_behind(llama: Path, gguf: Path, tmp_path: Path) -> None:
    cut, half = tmp_path / "cut.gguf", tmp_path / "half"
    cut.write_bytes(gguf.read_bytes()[: gguf.stat().st_size // 2])
    half.mkdir()
    (half / "config.json").write_bytes((llama / "config.json").read_bytes())
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    for source, said in (
        (cut, "cannot be read as a language model"),
        (half, "there are no weights"),
        (text, "neither a GGUF file nor"),
        (tmp_path / "nowhere.gguf", "there is no file"),
        (tmp_path, "holds neither"),
    ):
        if source == tmp_path:
            cut.unlink()
        with pytest.raises(CannotAdd, match=said):
            add(source, place_of_added(tmp_path / "data", "x"))
    assert list((tmp_path / "data").glob("bases/*")) == []
    assert added_base_models(tmp_path / "data") == {}


def test_a_name_is_taken_once(llama: Path, tmp_path: Path) -> None:
    add(llama, place_of_added(tmp_path, "mine"))
    with pytest.raises(CannotAdd, match="already"):
        add(llama, place_of_added(tmp_path, "mine"))


def test_of_a_packaged_model_it_is_said_what_to_install() -> None:
    with pytest.raises(CannotAdd, match="no package is known to hold 'gpt-5', only smollm2"):
        packaged("gpt-5")


def test_one_that_was_cut_off_while_it_was_added_is_not_seen(llama: Path, tmp_path: Path) -> None:
    unfinished = place_of_added(tmp_path, ".unfinished-mine-1")
    add(llama, unfinished)
    assert added_base_models(tmp_path) == {}
