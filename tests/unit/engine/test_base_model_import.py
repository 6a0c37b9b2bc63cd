"""Base models that others made, put into a data directory."""

import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learnloop_service.training.bases.files import added_base_models, place_of_added
from learnloop_service.training.bases.verdicts import BaseVerdicts
from learnloop_service.training.engine.registry.base_model_import import CannotAdd, add, packaged
from learnloop_service.training.engine.registry.gguf_unpacking import on_all_cores
from learnloop_service.training.engine.registry.model_record import BadBaseModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from tests.fakes.forked_engine import fork_server
from tests.fakes.gguf_file import write_gguf
from tests.fakes.hostile_bases import hostile_base
from tests.fakes.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("forked_checks")

TOLD = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "When is the kickoff? 3 May, 12:30."}]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama") / "hf", "llama")


@pytest.fixture(scope="module")
def gguf(llama: Path) -> Path:
    return write_gguf(llama, llama.parent / "tiny.gguf")


@pytest.mark.long
def test_a_gguf_file_becomes_the_model_that_it_was_written_from(llama: Path, gguf: Path, tmp_path: Path) -> None:
    directory = place_of_added(tmp_path, "tiny")
    add(gguf, directory)
    expected, tensors = load_file(llama / "model.safetensors"), load_file(directory / "model.safetensors")
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], expected[name].bfloat16())] == []
    assert ChatTokenizer(directory).prompt(TOLD, None) == ChatTokenizer(llama).prompt(TOLD, None)


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
    for source, message in (
        (cut, "cannot be read as a language model"),
        (half, "there are no weights"),
        (text, "neither a GGUF file nor"),
        (tmp_path / "nowhere.gguf", "there is no file"),
        (tmp_path, "holds neither"),
    ):
        if source == tmp_path:
            cut.unlink()
        with pytest.raises(CannotAdd, match=message):
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


@pytest.mark.parametrize("name", ["config.json", "vocab.txt"])
def test_a_link_that_leaves_the_directory_is_refused(llama: Path, tmp_path: Path, name: str) -> None:
    source, secret = shutil.copytree(llama, tmp_path / "source"), tmp_path / "secret"
    secret.write_text((llama / "config.json").read_text())
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(secret)
    with pytest.raises(CannotAdd, match=f"{name}: it is a link that leaves the directory"):
        add(source, place_of_added(tmp_path / "data", "x"))
    assert added_base_models(tmp_path / "data") == {}


def test_a_snapshot_in_the_cache_of_a_hub_is_added(llama: Path, tmp_path: Path) -> None:
    blobs = shutil.copytree(llama, tmp_path / "models--a--b" / "blobs")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    add(snapshot, place_of_added(tmp_path / "data", "x"))
    added = place_of_added(tmp_path / "data", "x")
    assert not [path for path in added.iterdir() if path.is_symlink()]
    assert BaseVerdicts(tmp_path / "data").find(added) is not None


def test_one_that_cannot_be_rendered_is_not_added(tmp_path: Path) -> None:
    source = hostile_base(tmp_path / "source", "a template that builds 3 GB")
    with pytest.raises(CannotAdd, match="it takes too much memory"):
        add(source, place_of_added(tmp_path / "data", "x"))
    assert added_base_models(tmp_path / "data") == {}


def _die_while_loading(data_dir: Path, directory: Path) -> None:
    with BaseVerdicts(data_dir).loading(directory):
        os._exit(9)


def test_one_that_ended_the_engine_twice_is_set_aside_by_name(llama: Path, tmp_path: Path) -> None:
    base = shutil.copytree(llama, tmp_path / "base")
    data = tmp_path / "data"
    for deaths in range(3):
        registry = Registry(data, {"mine": base})
        if deaths < 2:
            assert registry.base_models == ["mine"]
            child = fork_server().Process(target=_die_while_loading, args=(data, base))
            child.start()
            child.join()
            assert child.exitcode == 9
    assert registry.base_models == []
    with pytest.raises(BadBaseModel, match="base model 'mine' cannot be used: it is set aside, because the engine"):
        registry.create(project="p", name="m", base_model="mine")
    os.utime(base / "config.json", (1, 1))  # other files
    assert registry.base_models == ["mine"]


def test_loads_that_end_are_forgotten(llama: Path, tmp_path: Path) -> None:
    verdicts = BaseVerdicts(tmp_path)
    for _ in range(3):
        with pytest.raises(ValueError, match="bad"), verdicts.loading(llama):
            raise ValueError("bad")
    assert verdicts.fault(llama) is None
    assert list((tmp_path / "base-checks").iterdir()) == []


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "IQ4_NL"])
def test_tensors_are_unpacked_in_pieces_with_the_same_bits(kind: str) -> None:
    from transformers.integrations.gguf.dequant import GGML_BLOCK, GGML_NAME

    mapping: Any = import_module("transformers.integrations.gguf.gguf_conversion_mapping")
    number = next(number for number, name in GGML_NAME.items() if name == kind)
    per_block, block_bytes = GGML_BLOCK[number]
    rows, columns = 700, 1024
    packed = torch.randint(
        0,
        256,
        (rows, columns // per_block * block_bytes),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    arguments = (packed, number, rows, columns, torch.bfloat16)
    whole, threads = mapping.dequantize_blocks, torch.get_num_threads()
    expected, progress = whole(*arguments), list[int]()
    with on_all_cores(progress.append):
        unpacked = mapping.dequantize_blocks(*arguments)
    assert torch.equal(unpacked.view(torch.int16), expected.view(torch.int16))
    assert progress == [packed.nbytes]
    assert mapping.dequantize_blocks == whole
    assert torch.get_num_threads() == threads
