"""Model classes come without PyTorch's compiler. In fresh processes: the one of the tests has imported everything."""

import subprocess
import sys

_HEAVY = "('torch._dynamo', 'torch.distributed.tensor', 'sympy')"


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


def test_the_engine_comes_without_the_compiler_and_it_can_come_later() -> None:
    code = (
        "import sys\n"
        "from training.engine.model_classes import import_model_classes\n"
        "import_model_classes()\n"
        "import training.engine.http.server, transformers.models.qwen3.modeling_qwen3\n"
        f"print([name for name in {_HEAVY} if name in sys.modules])\n"
        "import torch, transformers.masking_utils as masks\n"
        "from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex\n"
        "assert isinstance(masks.TransformGetItemToIndex(), TransformGetItemToIndex)\n"
        "assert torch.distributed.is_available() and callable(torch._dynamo.optimize)\n"
    )
    assert python(code) == "[]"


def test_a_transformers_that_needs_more_of_the_compiler_gets_it() -> None:
    code = (
        "import sys\n"
        "from training.engine import model_classes\n"
        "model_classes._MARKERS = ()\n"
        "model_classes._CLASSES = model_classes._CLASSES[1:2]\n"  # enough to need it
        "model_classes.import_model_classes()\n"
        "print(callable(sys.modules['torch._dynamo'].optimize))\n"
    )
    assert python(code) == "True"
