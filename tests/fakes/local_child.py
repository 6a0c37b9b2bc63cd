"""ART's real local backend, in our real process for it, over a scripted service in place of Unsloth and vLLM.

The service samples "At noon." and trains by writing checkpoints in ART's layout; `trained` in the data directory lists
the steps that it trained from. A file `orders` there makes it die once, in the middle of a checkpoint: `after mkdir`,
`after half the adapter`, `after the adapter`, `after the config`.

`imports.json` there records what the import of ART's local backend needed and changed.
"""

import asyncio
import importlib.util
import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from learnloop_service.training.backends.local.server import art_backend, main
from tests.fakes.scripted_chat import Reply, ScriptedChat, scripted_chat

IMPORTS = "imports.json"
CONFIG = {"peft_type": "LORA", "r": 8}


def adapter() -> bytes:
    """Return a small safetensors file."""
    header = json.dumps({"lora_A": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(256))


class ScriptedService:
    """A scripted version of ART's ModelService."""

    def __init__(self, output_dir: Path, data_dir: Path) -> None:
        self._checkpoints = output_dir / "checkpoints"
        self._data_dir = data_dir
        self._chat: Any = None

    async def start_openai_server(self, config: Any) -> tuple[str, int]:
        async def say(request: Mapping[str, Any]) -> Reply:
            return Reply(content="At noon.")

        self._chat = scripted_chat(say)
        chat: ScriptedChat = await self._chat.__aenter__()
        return "127.0.0.1", int(chat.url.split(":")[-1].removesuffix("/v1"))

    async def vllm_engine_is_sleeping(self) -> bool:
        return False

    async def aclose(self) -> None:
        await self._chat.__aexit__(None, None, None)

    async def train(self, tensors: Any, config: Any, _config: Any, verbose: bool = False) -> AsyncIterator[Any]:
        assert tensors["num_sequences"] > 0
        yield {"loss/train": 0.5}
        await asyncio.sleep(0)
        before = max((int(path.name) for path in self._checkpoints.glob("*") if path.name.isdigit()), default=0)
        self._write(self._checkpoints / f"{before + 1:04d}")
        with (self._data_dir / "trained").open("a") as file:
            file.write(f"{before}\n")

    def train_sft(self, batches: Any, config: Any, verbose: bool = False) -> AsyncIterator[Any]:
        raise NotImplementedError

    def _write(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True)
        self._obey("after mkdir")
        whole = adapter()
        (checkpoint / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
        self._obey("after half the adapter")
        (checkpoint / "adapter_model.safetensors").write_bytes(whole)
        self._obey("after the adapter")
        (checkpoint / "adapter_config.json").write_text(json.dumps(CONFIG))
        self._obey("after the config")

    def _obey(self, moment: str) -> None:
        orders = self._data_dir / "orders"
        if orders.exists() and orders.read_text() == moment:
            orders.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def _imports() -> dict[str, Any]:
    missing = [name for name in ("trl", "megatron") if importlib.util.find_spec(name) is None]
    if "trl" not in missing:  # trl comes with the extra `gpu`
        import art.unsloth.service
    missing_module = None
    try:
        import art.dev.get_model_config  # noqa: F401
    except ModuleNotFoundError as error:
        missing_module = str(error.name).partition(".")[0]
    method = multiprocessing.get_start_method()
    return {"start_method": method, "missing": missing, "model_config_wants": missing_module}


def make_backend(root: Path) -> Any:
    """Return ART's backend with the scripted service."""
    before = asyncio.run
    backend = art_backend(root)
    report = root.parent / IMPORTS
    if not report.exists():
        report.write_text(json.dumps({"asyncio_is_patched": asyncio.run is not before} | _imports()))

    async def service(model: Any) -> ScriptedService:
        if model.name not in backend._services:
            backend._services[model.name] = ScriptedService(root / model.project / "models" / model.name, root.parent)
        existing: ScriptedService = backend._services[model.name]
        return existing

    backend._get_service = service
    return backend


if __name__ == "__main__":
    main(make_backend)
