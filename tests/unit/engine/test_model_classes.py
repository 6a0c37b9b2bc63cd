"""Model classes come without PyTorch's compiler. In other processes: the one of the tests has imported everything."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from training.engine.model_classes import without_compiler

_COMPILER = ("torch._dynamo", "torch.distributed.tensor")
_SYMBOLIC = ("sympy", "torch.fx.experimental.symbolic_shapes")


def test_the_engine_starts_loads_trains_and_saves_without_the_compiler_which_can_come_later() -> None:
    code = "from tests.unit.engine import test_model_classes as test; print(test.imported())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(done.stdout) == [[], [True, True], [], True]


def imported() -> str:
    """What an engine has imported at its start, whether two threads at once do without the compiler, what is imported
    once it has trained and saved, and whether the compiler can come then; as JSON."""
    import tests.fakes.preloaded_engine  # noqa: F401, I001
    import torch

    from training.engine.__main__ import TINY_BASE
    from training.engine.registry.tuning import Tuning
    from training.engine.trainer.policy import Policy
    from training.engine.trainer.pretrained import load_model

    at_first = [name for name in (*_COMPILER, *_SYMBOLIC) if name in sys.modules]
    read = load_model(TINY_BASE, torch.device("cpu"), torch.float32)
    policy = Policy(read, Tuning("full"), lambda: TINY_BASE)
    at_first += [name for name in (*_COMPILER, *_SYMBOLIC) if name in sys.modules]
    model: Any = policy.model
    model.get_output_embeddings().weight.sum().backward()
    policy.optimizer.step(learning_rate=1e-4, max_grad_norm=1.0)
    with TemporaryDirectory() as directory:
        policy.save(Path(directory))
    stood_in = _at_once()
    after_training = [name for name in _COMPILER if name in sys.modules]
    wanted = import_module("torch._dynamo._trace_wrapped_higher_order_op").TransformGetItemToIndex
    comes_later = (
        isinstance(import_module("transformers.masking_utils").TransformGetItemToIndex(), wanted)
        and torch.distributed.is_available()
        and callable(sys.modules["torch._dynamo"].optimize)
    )
    return json.dumps([at_first, stood_in, after_training, comes_later])


def _at_once() -> list[bool]:
    """Whether something stands in for the compiler: in a thread that ends first, and in another one after that."""
    begun, other_ended = Event(), Event()

    def stands_in() -> bool:
        return _COMPILER[0] in sys.modules

    def last() -> bool:
        begun.set()
        return other_ended.wait(60) and stands_in()

    with ThreadPoolExecutor(1) as pool:
        outlasting = pool.submit(without_compiler, last)
        assert begun.wait(60)
        ended_first = without_compiler(stands_in)
        other_ended.set()
        return [ended_first, outlasting.result()]


def test_a_transformers_that_needs_more_of_the_compiler_gets_it() -> None:
    code = (
        "import sys\n"
        "from training.engine import model_classes\n"
        "model_classes._MARKERS = ()\n"
        "model_classes._CLASSES = model_classes._CLASSES[1:2]\n"  # enough to need it
        "model_classes.import_model_classes()\n"
        "print(callable(sys.modules['torch._dynamo'].optimize))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "True"


def test_a_model_is_the_same_without_symbolic_sizes_and_whoever_needs_more_of_them_gets_it() -> None:
    code = (
        "import sys\n"
        "from tests.unit.engine import test_model_classes as test\n"
        "from training.engine import model_classes\n"
        "model_classes.import_model_classes()\n"
        "alone = test.tensors()\n"
        "assert 'sympy' not in sys.modules\n"
        "del model_classes._OF_KNOWN_SIZES['sym_and']\n"
        "needing = test.tensors()\n"
        "assert callable(sys.modules['sympy'].Symbol)\n"
        "print(alone == needing == test.tensors(), len(alone) > 50)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "True True"


def tensors() -> dict[str, list[float]]:
    """The parameters and buffers of the tiny base, read anew."""
    import torch

    from training.engine.__main__ import TINY_BASE
    from training.engine.trainer.pretrained import load_model

    model = load_model(TINY_BASE, torch.device("cpu"), torch.float32)
    return {name: tensor.flatten().tolist() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
