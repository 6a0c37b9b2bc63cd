"""The guides, followed to the letter: all commands of a page run as they are written, in their order, in one folder.

Only training is shorter: programs on the path that stand before Learnloop's own let `train` make one small iteration,
and SHORTER has what requests and scripts ask for.
The processes of `learnloop` are forked, because their imports take seconds; tests/integration/install starts real ones.
What needs another machine or a large download stands in NOT_FOLLOWED and LEFT_OUT with its reason.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from tests.acceptance.documented_blocks import BLOCKS, ILLUSTRATIONS, Block
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop
from tests.fakes.mailboxes import mbox

pytestmark = pytest.mark.long

NOT_FOLLOWED = {
    "my_gpu": "it needs a GPU and a base model of gigabytes",
    "try_it": "its commands are the README's, and install and train for minutes",
}
LEFT_OUT = {
    "Qwen/": "a base model of gigabytes",
    "qwen-coder": "the same base model",
    "activate": "the environment is active here",
    "--wait-minutes": "it waits for a person",
    "latest": "the person's part of it",
    "key:KEY_ID": "it needs the operator's key",
    "claude": "there is no coding agent here",
    "desk": "an agent of the reader's",
}
"""Words in commands that are not run, with the reason."""
SHORTER = {
    r'"iterations": \d+': '"iterations": 1',
    r'"groups_per_iteration": \d+(?!, "rollouts)': '"groups_per_iteration": 2, "rollouts_per_group": 4',
    r"range\(6\)": "range(2)",
}
"""Training in requests and scripts, and how much of it is enough here."""
GUIDES = sorted(path.stem for path in (ROOT / "docs/guides").glob("*.md"))
BIN = Path(sys.executable).parent
PROGRAMS = {
    "learnloop": """#!/bin/sh
case "$*" in improve*start*) set -- "$@" --set validation=8 --set test=8 --set 'rungs=["prompt"]' ;; esac
case "$*" in train*epochs=*) set -- "$@" --set warm_start.epochs=1 ;; esac
case "$*" in
  train*"--iterations 0"*) ;;
  train*) set -- "$@" --iterations 1 --set groups_per_iteration=2 --set rollouts_per_group=4 \\
    --set evaluation.scenarios=2 --set evaluation.samples=1 --set evaluation.test_scenarios=2 ;;
esac
exec $LEARNLOOP "$@"
""",
    "pip": f"""#!/bin/sh
exec {BIN}/python -m pip install --quiet --no-deps --no-build-isolation --target "$PYTHONPATH" "${{@:$#}}"
""".replace("/bin/sh", "/bin/bash"),
    "python3": f"""#!/bin/sh
case "$*" in "-m venv "*) exec ln -s {BIN.parent} "$3" ;; esac
exec {BIN}/python "$@"
""",
}


@dataclass(slots=True)
class Reader:
    """Somebody who follows a guide in an empty folder."""

    folder: Path
    variables: dict[str, str]
    port: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        """Do what a block says: save it under the name that the page gives, or run its commands."""
        if name := _file_name(block):
            (self.folder / name).write_text(self._filled(block.text) + "\n")
        elif block.is_python:
            (self.folder / "snippet.py").write_text(self._filled(block.text))
            self.run("python3 snippet.py")
        for command in block.commands:
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self.variables[name] = self._value(self._filled(value))
            elif command.startswith("cd "):
                self.folder /= command.removeprefix("cd ")
            elif command.startswith("learnloop serve"):
                self.serve(command)
            elif command.startswith(("learnloop-agent run --keep", "learnloop mcp")):
                self.start(command)
            elif not any(words in command for words in LEFT_OUT):
                self.run(self._filled(re.sub(r"\n *(?=-)", " ", command)))

    def serve(self, command: str) -> None:
        """Start the service, and wait until it is ready."""
        self.start(command)
        self.variables["LEARNLOOP_URL"] = f"http://127.0.0.1:{self.port}"
        self.run("curl -sS --fail-with-body --retry 300 --retry-all-errors --retry-delay 1 $LEARNLOOP_URL/health/ready")

    def start(self, command: str) -> None:
        """Start a command that runs until the reader has followed the guide."""
        with (self.folder / "started.log").open("ab") as log:
            arguments = shlex.split(command, comments=True)
            started = subprocess.Popen(arguments, cwd=self.folder, env=self.variables, stdout=log, stderr=log)
        self.started.append(started)

    def run(self, command: str) -> None:
        """Run a command in a shell. It must succeed. An agent that waits for tasks has them until the run has ended."""
        if command.startswith("learnloop-agent run"):
            watch = f"learnloop runs watch {self._newest_run()}"
            command = f"{command} & agent=$!; {watch}; ended=$?; kill -INT $agent; wait $agent; exit $ended"
        ran = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.variables, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"

    def close(self) -> None:
        """Stop what was started, the service last."""
        for process in reversed(self.started):
            process.terminate()
            process.wait()

    def _value(self, value: str) -> str:
        """Return what a shell in the folder makes of the value of a variable."""
        command = ["bash", "-c", f"printf %s {value}"]
        return subprocess.check_output(command, cwd=self.folder, env=self.variables, text=True)

    def _newest_run(self) -> str:
        return str(Service(self.variables["LEARNLOOP_URL"]).runs(1)[0]["run_id"])

    def _filled(self, text: str) -> str:
        for pattern, shorter in SHORTER.items():
            text = re.sub(pattern, shorter, text)
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        return text.replace("RUN_ID", self._newest_run()) if "RUN_ID" in text else text


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    home, programs = tmp_path / "home", tmp_path / "programs"
    (home / "mail").mkdir(parents=True)
    (home / "mail/archive.mbox").write_bytes(mbox(60))
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "configs").symlink_to(ROOT / "configs")
    port = free_port()
    path = os.pathsep.join([str(programs), str(BIN), os.environ["PATH"]])
    variables = {"PYTHONPATH": str(tmp_path / "packages"), "HOME": str(home), "PATH": path}
    variables |= {"LEARNLOOP_PORT": str(port), "LEARNLOOP": shlex.join(learnloop())}
    opened = Reader(folder, os.environ | variables, port)
    yield opened
    opened.close()


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_works_as_it_is_written(guide: str, reader: Reader) -> None:
    if guide in NOT_FOLLOWED:
        pytest.skip(NOT_FOLLOWED[guide])
    blocks = [block for block in BLOCKS if block.where.startswith(f"docs/guides/{guide}.md:")]
    if (missing := [name for name in ("curl", "jq") if which(name) is None]) and any(
        program in block.text for block in blocks for program in missing
    ):
        pytest.skip(f"the guide needs {missing}")
    for block in blocks:
        if _file_name(block) or not block.text.startswith(tuple(ILLUSTRATIONS)):
            reader.follow(block)


def _file_name(block: Block) -> str | None:
    """The name of the file that holds the block, if the words before it give one."""
    page, _, line = block.where.partition(":")
    before = (ROOT / page).read_text(encoding="utf-8").splitlines()[: int(line) - 1]
    words = " ".join(before[-4:])
    names = re.findall(r"`([\w.]+\.(?:py|sh|json|csv|yaml))`", words)
    return names[-1] if names and not block.commands else None
