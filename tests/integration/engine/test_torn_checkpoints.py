"""An engine whose newest checkpoint was torn while it was down continues from the one before."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx

from tests.fakes.engine_process import EngineProcess
from tests.integration.engine.training_client import create_model, sample, sampled_group, train


def _truncated(share: float) -> Callable[[Path], None]:
    def tear(checkpoint: Path) -> None:
        weights = checkpoint / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: int(weights.stat().st_size * share)])

    return tear


def _emptied(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def _without_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()


TEARS = [*(_truncated(Random(n).random()) for n in range(3)), _emptied, _without_config]


async def test_a_torn_newest_checkpoint_is_set_aside_and_the_one_before_goes_on(base: Path, tmp_path: Path) -> None:
    arguments = ("--base-model", f"tiny={base}")
    models = {f"agent-{number}": tear for number, tear in enumerate(TEARS)}
    ids = {}
    with EngineProcess(tmp_path, *arguments) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            for name in models:
                ids[name] = (await create_model(http, name))["id"]
            # They are the same model under many names, so one's replies are the others'.
            group = await sampled_group(http, "agent-0")
            for model_id in list(ids.values()) * 2:
                await train(http, model_id, [group])
            reply = (await sample(http, "agent-0@1", seed=1))["logprobs"]
        engine.stop(signal.SIGKILL)
    for name, tear in models.items():
        tear(tmp_path / "models" / "test" / name / "checkpoints" / "000002")
    with EngineProcess(tmp_path, *arguments) as engine:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=60) as http:
            for name in models:
                assert (await http.get(f"/preview/models/{ids[name]}")).json()["step"] == 1
                assert (await sample(http, name, seed=1))["logprobs"] == reply
                assert (await train(http, ids[name], [group], expected_step=1))["step"] == 2
                assert (tmp_path / "models" / "test" / name / "checkpoints" / "000002.torn").is_dir()
