"""Asks a base model for tool calls.

    python -m learnloop_service.training.engine.examination.probe_child DIRECTORY DEVICE PROMPTS BYTES

Prints JSON lines: `{"device": ..., "total": ...}` when the weights are loaded, with the number of replies; `{"replies":
...}`, the number that ended, while it is asked; `{"estimate_s": ...}` after the first batch; and last `{"formats":
[...]}`, first the chat template's own. On a CPU its address space is limited to that of the libraries and `BYTES`. The
weights are safetensors, read by the engine's own loader.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from learnloop_service.training.engine.examination.check_child import address_space
from learnloop_service.training.engine.examination.probe import BATCH, Replies, probe, questions, sampler_of
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.policy import load_checkpoint
from learnloop_service.training.engine.weights.weights import snapshot
from learnloop_service.training.protocol.tool_formats.chosen import FILE, choose
from learnloop_service.training.protocol.tool_formats.formats import HERMES, JSON, TEXT, ToolFormat
from learnloop_service.training.tuning import Tuning

_FALLBACKS = (HERMES, JSON, TEXT)
"""Formats that a model may write although its chat template shows another. Those of one family are tried in that family
only."""


def main() -> int:
    directory, device = Path(sys.argv[1]), _device(sys.argv[2])
    to_ask, memory = questions(int(sys.argv[3])), int(sys.argv[4])
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if device.type == "cpu" and (used := address_space()):  # CUDA reserves more addresses than there is memory
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    tokenizers = _tokenizers(directory)
    sampler = sampler_of(snapshot(load_checkpoint(directory, directory, Tuning(), device)))
    progress = _Progress(len(to_ask) * len(tokenizers))
    _say({"device": str(device), "total": progress.total})
    replies: Replies = {}
    with torch.inference_mode():
        counts = [probe(sampler, tokenizer, to_ask, replies, progress.ended) for tokenizer in tokenizers]
    _say({"formats": [asdict(count) for count in counts]})
    return 0


def _tokenizers(directory: Path) -> list[ChatTokenizer]:
    """Return the base model's tokenizer in each format to be tried, first in that which its chat template shows."""
    with _in_format(directory, None) as links:
        of_template = ChatTokenizer(links)
    tokenizers = [of_template]
    for tool_format in _FALLBACKS:
        if tool_format != of_template.tool_format:
            with _in_format(directory, tool_format) as links:
                tokenizers.append(ChatTokenizer(links))
    return tokenizers


class _Progress:
    """Prints how many replies ended, and once how long the others will take."""

    def __init__(self, total: int) -> None:
        self.total, self._done = total, 0
        self._began = time.monotonic()
        self._is_estimated = False

    def ended(self, replies: int) -> None:
        self._done += replies
        _say({"replies": self._done})
        if self._done >= BATCH and not self._is_estimated:
            self._is_estimated = True
            _say({"estimate_s": (time.monotonic() - self._began) * (self.total - self._done) / self._done})


def _device(name: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


@contextmanager
def _in_format(directory: Path, tool_format: ToolFormat | None) -> Iterator[Path]:
    """Yield a directory of links to the base model's files that names this tool format, or none."""
    with tempfile.TemporaryDirectory(prefix="learnloop-probe-") as temporary:
        links = Path(temporary)
        for path in directory.iterdir():
            if path.name != FILE:
                (links / path.name).symlink_to(path.resolve())
        if tool_format is not None:
            choose(links, tool_format)
        yield links


def _say(line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
