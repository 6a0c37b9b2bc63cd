"""Runs a script that uses ART as its users do, in a process of its own."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


async def art_process(script: str, directory: Path, environment: Mapping[str, str]) -> Any:
    """What the script of this folder says at its end; it keeps its own files in `directory`.

    It inherits no keys: nothing is to go to anybody else's service.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "WANDB_MODE": "disabled"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, Path(__file__).with_name(script), directory),
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
    last = next(line for line in said.decode().splitlines() if line.startswith("RESULT "))
    return json.loads(last.removeprefix("RESULT "))
