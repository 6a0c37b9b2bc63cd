"""ART is imported late, and without torch. In a fresh process: the one of the tests has imported everything."""

import subprocess
import sys

import pytest


@pytest.mark.long
def test_art_comes_late_and_without_torch_which_can_come_later() -> None:
    service = (
        "learnloop_service.training.loop.learn_loop, learnloop_service.training.rollout.rollout, "
        "learnloop_service.training.scoring, learnloop_service.training.backends.embedded, "
        "learnloop_service.environment.email_search.environment, learnloop_sales.environment, "
        "learnloop_service.judges.reference"
    )
    code = (
        f"import sys, {service}\n"
        "def imported(*names): return [name for name in sys.modules if name.split('.')[0] in names]\n"
        "assert imported('torch', 'transformers', 'art', 'litellm', 'openai') == [], 'with the service'\n"
        "from learnloop_service.training.backends.art_import import import_art\n"
        "art, again = import_art(), import_art()\n"
        "client = import_art('art.serverless.client')\n"
        "assert art is again is sys.modules['art']\n"
        "assert art.Trajectory(messages_and_choices=[]).reward == 0.0\n"
        "assert client.Client.__module__ == 'art.serverless.client'\n"
        "assert imported('torch', 'transformers') == [], 'with art'\n"
        "from importlib.util import find_spec\n"
        "assert find_spec('torch') is not None\n"
        "print('done')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert process.stdout.strip() == "done"
