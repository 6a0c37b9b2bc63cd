"""`learnloop pipeline` over the real service: steps in order, each once, and mistakes named with their line."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from learnloop_service.app.cli.main import app
from tests.fakes.engine_process import ROOT
from tests.integration.app.sales_runs import SALES, sales_service
from tests.integration.cli.conftest import Learnloop, Ran
from tests.opened_database import execute

PIPELINE: dict[str, Any] = {"name": "sales", "train": SALES | {"iterations": 1}, "eval": {"scenarios": 2}}


async def _pipeline(step: str, document: Any, directory: Path, client: httpx.AsyncClient) -> Ran:
    file = directory / "sales.yaml"
    file.write_text(yaml.safe_dump(document))
    arguments = ["pipeline", step, "--config", str(file), "--url", str(client.base_url), "--data-dir", str(directory)]
    result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--json"])
    # The service's log is in between: here it is in this process.
    printed = result.stdout[result.stdout.index("[\n") :] if "[\n" in result.stdout else "[]"
    return Ran(result.exit_code, printed, result.stderr)


def _skipped(ran: Ran) -> dict[str, bool]:
    assert ran.exit_code == 0, ran.stderr
    return {step_result["step"]: step_result["skipped"] for step_result in ran.json}


async def _runs(client: httpx.AsyncClient) -> list[Any]:
    items: list[Any] = (await client.get("/runs")).json()["items"]
    return items


async def test_each_step_is_done_once_and_again_when_its_inputs_change(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    async with sales_service(data_dir, database_url) as client:
        early = await _pipeline("eval", PIPELINE, tmp_path, client)
        assert (early.exit_code, "`learnloop pipeline train` comes first" in early.stderr) == (1, True)
        first = await _pipeline("all", PIPELINE, tmp_path, client)
        assert _skipped(first) == {"train": False, "eval": False}
        trained, evaluated = (step_result["result"] for step_result in first.json)
        [run] = await _runs(client)
        assert (trained["run_id"], trained["step"]) == (run["run_id"], run["best_checkpoint"]["step"])
        assert [model["model"] for model in evaluated["models"]] == ["base", "trained"]

        again = await _pipeline("all", PIPELINE, tmp_path, client)
        assert _skipped(again) == {"train": True, "eval": True}
        assert [step_result["result"] for step_result in again.json] == [
            step_result["result"] for step_result in first.json
        ]
        changed = await _pipeline("eval", PIPELINE | {"eval": {"scenarios": 1}}, tmp_path, client)
        assert _skipped(changed) == {"eval": False}
        assert len(await _runs(client)) == 1


async def test_an_interrupted_training_is_followed_and_not_started_twice(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    async with sales_service(data_dir, database_url) as client:
        first = await _pipeline("train", PIPELINE, tmp_path, client)
        history = tmp_path / "pipelines" / "sales.json"
        steps = json.loads(history.read_text())
        for remaining in ({"train": steps["train"] | {"result": None}}, {}):  # after it began; after its reply was lost
            history.write_text(json.dumps(remaining))
            again = await _pipeline("train", PIPELINE, tmp_path, client)
            assert again.exit_code == 0
            assert again.json[0]["result"] == first.json[0]["result"]
        assert len(await _runs(client)) == 1
        history.write_text("{")
        damaged = await _pipeline("train", PIPELINE, tmp_path, client)
        assert (damaged.exit_code, "sales.json" in damaged.stderr) == (1, True)


async def test_a_training_that_somebody_cancelled_is_made_anew(
    data_dir: Path, database_url: str, tmp_path: Path
) -> None:
    async with sales_service(data_dir, database_url) as client:
        first = await _pipeline("train", PIPELINE, tmp_path, client)
        await execute(database_url, "UPDATE run SET status = 'cancelled'")
        again = await _pipeline("train", PIPELINE, tmp_path, client)
        assert _skipped(again) == {"train": False}
        assert again.json[0]["result"]["run_id"] != first.json[0]["result"]["run_id"]


@pytest.mark.parametrize(
    ("text_", "line", "said"),
    [
        ("train:\n  iterations: 2\n  colour: red\n", 3, "train.colour: Unknown field"),
        ("train:\n  evaluation:\n    every: 0\n", 3, "train.evaluation.every: Input should be greater"),
        ("train: {}\ndata:\n  name: a\n  limit: many\n", 4, "data.limit"),
        ("train: {}\ndata:\n  name: a\n", 2, "data.emails: Field required"),
        ("train: {}\neval:\n  scenarios: 0\n", 3, "eval.scenarios"),
        ("train: {}\neval:\n  models:\n    - label: a\n", 4, "eval.models.0: give model or prompted; or a prompt"),
        ("train: {}\npromote:\n  name: live\n  if_better: perhaps\n", 4, "promote.if_better"),
        ("train: {}\ndeploy:\n  name: live\n  if_better: perhaps\n", 4, "promote.if_better"),
        ("train: {}\ndeploy: {as: a}\npromote: {as: b}\n", 2, "deploy: Extra inputs"),
        ("trian: {}\n", 1, "trian"),
        ("train: {\n", 2, "expected"),
        ("- 1\n", 1, "sections"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    learnloop: Learnloop, tmp_path: Path, text_: str, line: int, said: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text_)
    ran = learnloop("pipeline", "all", "--config", str(file), "--data-dir", str(tmp_path))
    assert ran.exit_code == 2
    flat = "".join(ran.stderr.replace("│", "").split())
    assert f"p.yaml:{line}:" in flat
    assert "".join(said.split()) in flat
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "pipelines").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_files_that_come_with_it_are_right(file: Path) -> None:
    from learnloop_service.app.cli.pipeline.config import LoadedPipeline

    assert LoadedPipeline(file).name == file.stem


def test_a_field_is_replaced_or_removed() -> None:
    from learnloop_service.app.cli.pipeline.config import LoadedPipeline

    file = ROOT / "configs" / "pipelines" / "agent_008.yaml"
    read = LoadedPipeline(file, {"data.inbox": None, "train.iterations": 2, "eval": None, "no.such": None})
    assert (read.file.data and read.file.data.inbox, read.file.train.iterations) == (None, 2)
    assert read.section("eval") is None
    assert "inbox" in (LoadedPipeline(file).section("data") or {})


def test_the_section_promote_has_an_old_name(tmp_path: Path) -> None:
    from learnloop_service.app.cli.pipeline.config import LoadedPipeline

    file = tmp_path / "p.yaml"
    file.write_text("train: {}\ndeploy: {as: live}\n")
    for path in ("promote.if_better", "deploy.if_better"):
        read = LoadedPipeline(file, {path: True})
        assert (read.file.promote and read.file.promote.name, read.file.promote and read.file.promote.if_better) == (
            "live",
            True,
        )
        assert read.section("promote") == {"as": "live", "if_better": True}


@pytest.mark.parametrize("step", ["promote", "deploy"])
def test_a_section_that_is_not_there_cannot_be_run(learnloop: Learnloop, tmp_path: Path, step: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("train: {}\n")
    ran = learnloop("pipeline", step, "--config", str(file), "--data-dir", str(tmp_path))
    assert (ran.exit_code, "no section `promote`" in ran.stderr) == (1, True)
    unknown = learnloop("pipeline", "ship", "--config", str(file), "--data-dir", str(tmp_path))
    assert (unknown.exit_code, "data, train, eval, promote, all" in unknown.stderr) == (2, True)
