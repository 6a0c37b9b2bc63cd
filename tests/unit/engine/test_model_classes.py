"""Model classes come without PyTorch's compiler. In fresh processes: the one of the tests has imported everything."""

import subprocess
import sys

_COMPILER = ("torch._dynamo", "torch.distributed.tensor")


def python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.strip()


def test_the_engine_starts_loads_and_trains_without_the_compiler_which_can_come_later() -> None:
    code = (
        "import sys\n"
        "from training.engine.model_classes import import_model_classes\n"
        "import_model_classes()\n"
        "import torch, training.engine.http.server\n"
        f"print([name for name in {(*_COMPILER, 'sympy')} if name in sys.modules])\n"
        "from training.engine.__main__ import TINY_BASE\n"
        "from training.engine.registry.tuning import Tuning\n"
        "from training.engine.trainer.policy import load_policy\n"
        "policy = load_policy(TINY_BASE, lambda: TINY_BASE, Tuning('full'), torch.device('cpu'))\n"
        "policy.model.get_output_embeddings().weight.sum().backward()\n"
        "policy.optimizer.step(learning_rate=1e-4, max_grad_norm=1.0)\n"
        f"print([name for name in {_COMPILER} if name in sys.modules])\n"
        "import transformers.masking_utils as masks\n"
        "from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex\n"
        "assert isinstance(masks.TransformGetItemToIndex(), TransformGetItemToIndex)\n"
        "assert torch.distributed.is_available() and callable(torch._dynamo.optimize)\n"
    )
    assert python(code).split() == ["[]", "[]"]


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
