"""ART is imported late, and without torch. In fresh processes: the one of the tests has imported everything."""

import subprocess
import sys
from pathlib import Path


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


def test_art_comes_late_without_torch_litellm_and_polars_and_they_can_come_later() -> None:
    service = (
        "training.learn_loop, training.rollout.rollout, training.scoring, training.backends.embedded, "
        "environment.email_search.environment, environment.sales_email.environment, judges.reference"
    )
    code = (
        f"import sys, {service}\n"
        "def imported(*names): return [name for name in sys.modules if name.split('.')[0] in names]\n"
        "assert imported('torch', 'transformers', 'art', 'litellm', 'openai') == [], 'with the service'\n"
        "from training.backends.art_import import import_art\n"
        "art, again = import_art(), import_art()\n"
        "client = import_art('art.serverless.client')\n"
        "assert art is again is sys.modules['art']\n"
        "assert art.Trajectory(messages_and_choices=[]).reward == 0.0\n"
        "assert client.Client.__module__ == 'art.serverless.client'\n"
        "assert imported('torch', 'transformers', 'litellm', 'polars') == [], 'with art'\n"
        "from importlib.util import find_spec\n"
        "assert find_spec('torch') is not None\n"
        "logging = sys.modules['art.utils.trajectory_logging']\n"
        "assert not isinstance(object(), logging.Choices)\n"
        "import litellm\n"
        "from litellm.types.utils import Choices\n"
        "assert isinstance(Choices(), logging.Choices)\n"
        "assert litellm.acompletion and import_art('art.rewards.ruler').acompletion is litellm.acompletion\n"
        "tables = sys.modules['art.model'].pl\n"
        "assert not hasattr(tables, 'nothing')\n"
        "import polars\n"
        "assert tables.DataFrame is polars.DataFrame\n"
        "print('done')\n"
    )
    assert python(code) == "done"


def test_an_art_that_needs_more_of_litellm_and_polars_gets_it(tmp_path: Path) -> None:
    """Ours stand for all here: the real ones take seconds to import."""
    for path, source in {
        "polars.py": "class DataFrame: pass\n",
        "litellm/types/utils.py": "class Choices: pass\nclass More: pass\n",
        "litellm/types/__init__.py": "",
        "litellm/__init__.py": "",
        "art/__init__.py": "from . import costs\n",
        "art/costs.py": "import polars\nframe = polars.DataFrame\nfrom litellm.types.utils import Choices, More\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from training.backends.art_import import import_art\n"
        "costs = import_art().costs\n"
        "from litellm.types.utils import Choices\n"
        "assert costs.Choices is Choices\n"
        "print(costs.More.__name__, costs.frame.__module__)\n"
    )
    assert python(code) == "More polars"
