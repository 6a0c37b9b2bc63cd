"""Loads, renders and examines a base model.

    python -m learnloop_service.training.engine.examination.check_child DIRECTORY SECONDS BYTES

Prints JSON in the last line: as `fault` why the base model cannot be used, or null, and the `report` of its
examination. The limits are processor time and address space beyond that of the libraries. Weights are read if they are
small enough; of larger models only the modules are made, without memory for their weights, and single rows are read.
"""

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from learnloop_service.environment.first_line import first_line
from learnloop_service.training.bases.files import MAX_TOKENS, base_model_fault
from learnloop_service.training.bases.report import BaseReport, Finding, FindingSeverity, written
from learnloop_service.training.engine.examination.examine import examine
from learnloop_service.training.engine.text.tokens import BadConversation, ChatTokenizer, Message
from learnloop_service.training.engine.trainer.policy import load_checkpoint
from learnloop_service.training.engine.weights import llama_modules
from learnloop_service.training.engine.weights.llama_modules import LlamaModel
from learnloop_service.training.tuning import Tuning

if TYPE_CHECKING:  # the import takes long
    from transformers import PreTrainedModel

_READ_BYTES = 1 << 30
"""Total size of weights that are read. In float32 they take up to twice as much memory."""
_RUN_BYTES = 640 << 20
"""Total size of weights that are also run. In float32, and with the copy that is sampled, they take four times as
much."""
_MAPPINGS = 4
"""Number of times that a file of weights can be mapped at a time. It is mapped whole to read single rows of it, which
takes addresses but no memory."""
_MAX_MESSAGE = 300
_TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
_CALL = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
_QUESTION = {"role": "user", "content": "When is the kickoff?"}
_CALLS: list[Message] = [
    _QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "12 May", "tool_call_id": "call-1"},
]


def main() -> int:
    directory, seconds, memory = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = address_space()
    if used:
        limit = used + memory + _MAPPINGS * _weights(directory)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    report = None
    try:
        fault = base_model_fault(directory)
        if fault is None:
            tokenizer = ChatTokenizer(directory)
            fault = _fault(directory, tokenizer)
        if fault is None:
            report = written(_report(directory, tokenizer))
    except (MemoryError, RecursionError, OverflowError):
        fault = f"loading it takes more than {memory >> 30} GiB of memory"
    except Exception as error:  # files from outside can cause any exception of the libraries
        text = f"{type(error).__name__}: {first_line(error)}".replace(str(directory), directory.name)
        fault = f"it cannot be loaded: {text[:_MAX_MESSAGE]}"
    sys.stdout.write(f"\n{json.dumps({'fault': fault, 'report': report})}\n")
    return 0


def address_space() -> int:
    """Return the size of this process's address space in bytes, or 0 on systems that do not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _report(directory: Path, tokenizer: ChatTokenizer) -> BaseReport:
    """Examine a base model that can be used. If that fails, it can still be used."""
    try:
        return examine(directory, tokenizer)
    except Exception as error:  # files from outside can cause any exception of the libraries
        text = f"It could not be examined: {type(error).__name__}: {first_line(error)[:_MAX_MESSAGE]}"
        return BaseReport((Finding("examination", FindingSeverity.WARNING, text),))


def _fault(directory: Path, tokenizer: ChatTokenizer) -> str | None:
    if tokenizer.vocab_size > MAX_TOKENS:
        return f"its tokenizer has {tokenizer.vocab_size:,} tokens; at most {MAX_TOKENS:,} are allowed"
    tokenizer.prompt([_QUESTION], None)
    with suppress(BadConversation):  # a template may know no tools
        tokenizer.prompt(_CALLS, [_TOOL])
    if _weights(directory) <= _READ_BYTES:
        model = load_checkpoint(directory, directory, Tuning(), torch.device("cpu"))
        if isinstance(model, LlamaModel) or _weights(directory) <= _RUN_BYTES:
            return _sampling_fault(model)
    if llama_modules.is_readable(directory):
        return None
    return _sampling_fault(_modules(directory))


def _sampling_fault(model: "PreTrainedModel | LlamaModel") -> str | None:
    """Return why the engine cannot sample from a model or train it. It has its own code for Llama-shaped ones."""
    if isinstance(model, LlamaModel):
        return None
    from learnloop_service.training.engine.examination.trial import sampling_fault  # imports transformers

    fault = sampling_fault(model)
    return f"the engine cannot sample from {type(model).__name__}: {fault}" if fault else None


def _weights(directory: Path) -> int:
    """Return the total size of the weights in bytes."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _modules(directory: Path) -> "PreTrainedModel":
    """Return a model without its weights."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


if __name__ == "__main__":
    sys.exit(main())
