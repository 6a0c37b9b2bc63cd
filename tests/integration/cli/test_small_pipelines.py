"""The shipped pipelines in small, as documented: the tiny base model learns without a GPU, a key or a network."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from learnloop_service.app.cli.pipeline.config import LoadedPipeline
from learnloop_service.app.cli.run_request import parse_settings
from tests.fakes.engine_process import ROOT

PIPELINES = ("agent_008", "art_rl", "mailbox", "sales")
_COMMAND = re.compile(r"^    learnloop (pipeline all (?:.*\\\n)*.*)$", re.MULTILINE)


def commands() -> dict[str, list[str]]:
    """The arguments of each documented command, by the name of its pipeline."""
    text = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8").partition("## In small")[2]
    word_lists = [shlex.split(command.replace("\\\n", " ")) for command in _COMMAND.findall(text)]
    return {Path(words[words.index("--config") + 1]).stem: words for words in word_lists}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_small_pipeline_needs_no_data_gpu_or_key(name: str) -> None:
    words = commands()[name]
    settings = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
    small = LoadedPipeline(ROOT / words[words.index("--config") + 1], parse_settings(settings))
    train = small.section("train") or {}
    assert small.section("data") is None
    assert train.get("model", {}).get("base_model", "learnloop/tiny") == "learnloop/tiny"
    assert train.get("judge", {}).get("name", "reference") in ("reference", "grounding")
    assert "learning_rate" not in train
    assert train["iterations"] == 14


@pytest.mark.long
def test_a_small_pipeline_improves(tmp_path: Path) -> None:
    """Three iterations instead of the documented fourteen show as much on the test questions."""
    evaluation = ("every=3", "scenarios=4", "test_scenarios=0")
    quick = ("train.iterations=3", *(f"train.evaluation.{setting}" for setting in evaluation), "eval.scenarios=24")
    settings = [part for setting in quick for part in ("--set", setting)]
    arguments = [*commands()["art_rl"], *settings, "--json", "--data-dir", str(tmp_path)]
    code = "from learnloop_service.app.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=1_200, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    results = {step_result["step"]: step_result["result"] for step_result in json.loads(ran.stdout)}
    assert list(results) == ["train", "eval", "promote"]
    base, trained = results["eval"]["models"]
    assert (base["model"], trained["model"]) == ("base", "trained")
    assert trained["difference"]["low"] > 0.3, results["eval"]
