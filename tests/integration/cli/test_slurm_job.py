"""The Slurm job with a scripted `learnloop` and `scontrol`: what it starts, and what a requeue finds."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conditions import until
from tests.fakes.engine_process import ROOT

JOB = ROOT / "deploy" / "slurm" / "learnloop.sbatch"
LEARNLOOP = """#!/bin/bash
echo "learnloop $*" >>calls
case "$1 $2" in
    "serve --port") trap 'echo "service stopped" >>calls; exit 0' TERM; while :; do sleep 0.02; done ;;
    "runs list") cat runs.json ;;
    "train run.yaml")
        echo "[{\\"run_id\\": \\"R7\\", \\"model\\": {\\"name\\": \\"$4\\"}}]" >runs.json
        echo '{"run_id": "R7"}'
        ;;
    "runs watch") while [[ ! -e ended ]]; do sleep 0.02; done; exit "$(cat ended)" ;;
    "preflight run.yaml") exit "$(cat unfit 2>/dev/null || echo 0)" ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory that the job was submitted from."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"learnloop": LEARNLOOP, "scontrol": '#!/bin/bash\necho "scontrol $*" >>calls\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "runs.json").write_text('[{"run_id": "R1", "model": {"name": "slurm-3"}}]')
    (tmp_path / "calls").touch()
    return tmp_path


def _calls(place: Path) -> list[str]:
    """What was called, without ports and repeated questions."""
    lines = [line.partition(" --url")[0] for line in (place / "calls").read_text().splitlines()]
    lines = ["learnloop serve" if line.startswith("learnloop serve") else line for line in lines]
    return [line for line in lines if not line.startswith("learnloop runs list")]


@asynccontextmanager
async def _job(
    place: Path, restarts: int = 0, job: Path = JOB, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {
        "PATH": os.environ["PATH"],
        "SLURM_SUBMIT_DIR": str(place),
        "SLURM_JOB_ID": "42",
        "SLURM_RESTART_COUNT": str(restarts),
        **variables,
    }
    process = await asyncio.create_subprocess_exec(
        "bash", str(job), "run.yaml", env=environment, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.parametrize("status", [0, 1])
async def test_it_ends_as_its_run_does(place: Path, status: int) -> None:
    (place / "ended").write_text(str(status))
    async with _job(place) as job:
        assert await asyncio.wait_for(job.wait(), 60) == status
    assert _calls(place) == [
        "learnloop preflight run.yaml --no-trial",
        "learnloop serve",
        "learnloop train run.yaml --model slurm-42 --detach",
        "learnloop runs watch R7",
        "service stopped",
    ]


async def test_it_is_requeued_and_finds_its_run_again(place: Path) -> None:
    async with _job(place) as job:
        await until(lambda: "learnloop runs watch R7" in _calls(place))
        job.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(job.wait(), 60) == 0
    assert _calls(place)[-2:] == ["service stopped", "scontrol requeue 42"]
    (place / "calls").write_text("")
    (place / "ended").write_text("0")
    async with _job(place, restarts=1) as job:
        assert await asyncio.wait_for(job.wait(), 60) == 0
    assert _calls(place) == ["learnloop serve", "learnloop runs watch R7", "service stopped"]


async def test_a_machine_that_is_unfit_starts_nothing(place: Path) -> None:
    (place / "unfit").write_text("1")
    async with _job(place) as job:
        assert await asyncio.wait_for(job.wait(), 60) == 1
    assert _calls(place) == ["learnloop preflight run.yaml --no-trial"]
    assert json.loads((place / "runs.json").read_text())[0]["run_id"] == "R1"


async def test_with_ray_the_engine_is_on_all_nodes_and_the_rest_is_the_same(place: Path) -> None:
    (place / "deploy").symlink_to(ROOT / "deploy")
    srun = place / ".venv" / "bin" / "srun"
    srun.write_text('#!/bin/bash\necho "srun $* auth $RAY_AUTH_MODE" >>calls\n')
    srun.chmod(0o755)
    (place / "ended").write_text("0")
    async with _job(place, job=JOB.with_name("learnloop-ray.sbatch"), SLURM_NNODES="3") as job:
        assert await asyncio.wait_for(job.wait(), 60) == 0
    [started] = [line for line in _calls(place) if line.startswith("srun")]
    assert started.startswith("srun --nodes=3 --ntasks-per-node=1 ray symmetric-run --address ")
    assert "--min-nodes 3 -- learnloop engine --ray auto --samplers 2 --trainers 1 --device cpu " in started
    assert started.endswith("auth token")
    assert "learnloop runs watch R7" in _calls(place)
