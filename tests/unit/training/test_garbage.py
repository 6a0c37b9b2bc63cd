import subprocess
import sys

import pytest


@pytest.mark.parametrize(("first", "looked"), [("", True), ("look_seldom_at_everything()", False)])
def test_everything_is_looked_through_seldom(first: str, looked: bool) -> None:
    """A fresh process holds only what the code keeps."""
    code = (
        "import gc\n"
        "from learnloop_service.training.garbage import look_seldom_at_everything\n"
        f"{first}\n"
        "before = gc.get_stats()[2]['collections']\n"
        "kept = [[] for _ in range(300_000)]\n"
        "print(gc.get_stats()[2]['collections'] > before)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert process.stdout.strip() == str(looked)
