"""The last step of a pipeline, on a real engine: its best checkpoint answers under the promoted name."""

import asyncio
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from learnloop_service.app.cli.pipeline.config import digest
from learnloop_service.app.cli.pipeline.steps import StepHistory
from tests.integration.app.model_stage import CALLER, ModelStage

TRAIN: dict[str, Any] = {"iterations": 1}


async def test_the_best_checkpoint_gets_the_name_once(stage: ModelStage, tmp_path: Path) -> None:
    file, key = tmp_path / "p.yaml", await stage.key()
    file.write_text(yaml.safe_dump({"train": TRAIN, "promote": {"as": "live", "if_better": True}}))
    run_id = await stage.run_of()

    async def promoted(step: int) -> str:
        trained = {"run_id": run_id, "model": CALLER, "step": step, "success": None}
        StepHistory(tmp_path, "p").save("train", digest(TRAIN), run_id, trained)
        url = ("--url", str(stage.service.client.base_url), "--data-dir", str(tmp_path))
        arguments = ["pipeline", "promote", "--config", str(file), *url]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"LEARNLOOP_API_KEY": key})
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "mail/live is mail/caller@1" in await promoted(1)  # nothing has the name: no trial is needed
    assert "unchanged" in await promoted(1)
    headers = {"authorization": f"Bearer {key}"}
    history = (await stage.service.client.get("/promotions/mail/live", headers=headers)).json()["items"]
    assert [(promotion["model"], promotion["step"]) for promotion in history] == [(CALLER, 1)]
