"""Runs scripts that use ART as its users do, in a process of their own: a fork of one that has imported ART, as
`test_guides` has a script that imports it itself."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.forked_learnloop import run_module


async def art_process(directory: Path, environment: Mapping[str, str], *scripts: str) -> list[Any]:
    """What each of the scripts of this folder says at its end; they run one after the other, as the main module, and
    keep their own files in `directory`.

    They inherit no keys: nothing is to go to anybody else's service.
    """
    paths = [str(Path(__file__).with_name(script)) for script in scripts]
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "WANDB_MODE": "disabled"}
    process = await asyncio.create_subprocess_exec(
        *(*run_module(), "tests.fakes.run_scripts", str(directory), *paths),
        cwd=directory,
        env=inherited | quiet | dict(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complained.decode()
    results = [line for line in said.decode().splitlines() if line.startswith("RESULT ")]
    assert len(results) == len(scripts)
    return [json.loads(line.removeprefix("RESULT ")) for line in results]
