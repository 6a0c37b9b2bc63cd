"""Imports, makes and saves transformers' models without PyTorch's compiler, the algebra (sympy) with which it computes
sizes, and its distributed tensors: we use none of them.

Together they are half of what the engine would import, and a restart waits for it, or its first checkpoint. Where they
are needed after all they are imported then. Whatever transformers wants of them beyond what is named here makes us
import everything.
"""

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

_COMPILER = "torch._dynamo"
_TRACING = f"{_COMPILER}._trace_wrapped_higher_order_op"
_DISTRIBUTED = "torch.distributed.tensor"
_SYMBOLIC, _SYMPY = "torch.fx.experimental.symbolic_shapes", "sympy"
_OF_KNOWN_SIZES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true"), bool
    ),
    "is_nested_int": lambda _: False,
    "has_guarding_hint": lambda _: True,
    "guarding_hint_or_throw": lambda size: size,
    "sym_and": lambda *conditions: all(conditions),
    "sym_or": lambda *conditions: any(conditions),
    "sym_eq": operator.eq,
}
"""What tensors are asked about their sizes, and what is so of sizes that are numbers."""
_MARKERS = ("allow_in_graph", "assume_constant_result", "disable")
_CLASSES = "transformers.models.auto.modeling_auto", "transformers.modeling_layers", "peft"

T = TypeVar("T")
_importing = Lock()


def import_model_classes() -> None:
    """Before anything else imports them."""

    def import_alone() -> None:
        with _alone():
            _import()

    with _importing:
        if "transformers.modeling_utils" not in sys.modules:
            without_compiler(import_alone, otherwise=_import)


def without_compiler(work: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
    """What the work gives, which does not import the compiler on the way; where it cannot do without, what `otherwise`
    (by default the same work) gives with it.

    PyTorch asks the compiler to leave alone what it computes of tensors without data, as a model's are until its file
    is read. Other threads may do so at the same time, and see no compiler meanwhile.
    """
    if not _stand_ins.begin():
        return (otherwise or work)()
    try:
        return work()
    except (ImportError, AttributeError):
        _stand_ins.remove()
        return (otherwise or work)()
    finally:
        _stand_ins.end()


def _import() -> None:
    for name in _CLASSES:
        import_module(name)


class _StandIns:
    """Modules in the compiler's place, for as long as anybody works without it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._modules: Mapping[str, ModuleType] = {}

    def begin(self) -> bool:
        """False: the compiler itself is there."""
        with self._lock:
            if not self._users:
                if _COMPILER in sys.modules:
                    return False
                self._modules = _make_stand_ins()
                sys.modules.update(self._modules)
            self._users += 1
            return True

    def end(self) -> None:
        """For one of those who began. The last one removes them."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._remove()

    def remove(self) -> None:
        """Let whoever imports the compiler from now on have it."""
        with self._lock:
            self._remove()

    def _remove(self) -> None:
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        torch = vars(sys.modules["torch"])
        if torch.get("_dynamo") is self._modules.get(_COMPILER):
            torch.pop("_dynamo", None)
        self._modules = {}


_stand_ins = _StandIns()


def _make_stand_ins() -> dict[str, ModuleType]:
    """Of the compiler with decorators that leave what they would mark for it as it is."""
    import torch  # noqa: F401

    compiler, tracing = ModuleType(_COMPILER), ModuleType(_TRACING)
    compiler.__path__ = []
    for name in _MARKERS:
        setattr(compiler, name, _unmarked)
    tracing.TransformGetItemToIndex = _transform_get_item_to_index  # type: ignore[attr-defined]
    compiler.eval_frame = SimpleNamespace(OptimizedModule=_Compiled)  # type: ignore[attr-defined]
    symbolic, sympy = ModuleType(_SYMBOLIC), ModuleType(_SYMPY)
    vars(symbolic).update(_OF_KNOWN_SIZES, __getattr__=partial(_import_after_all, _SYMBOLIC))
    vars(sympy).update(
        Basic=_Symbol,
        __getattr__=partial(_import_after_all, _SYMPY),
        __spec__=ModuleSpec(_SYMPY, None),  # who asks whether it is installed looks for one
    )
    distributed = ModuleType(_DISTRIBUTED)  # without its class: who asks whether a tensor is one goes on
    made = {_COMPILER: compiler, _TRACING: tracing}
    if _SYMPY not in sys.modules:
        made |= {_SYMBOLIC: symbolic, _SYMPY: sympy}
    if _DISTRIBUTED not in sys.modules:
        made[_DISTRIBUTED] = distributed
    return made


def _import_after_all(module: str, name: str) -> Any:
    """What a stand-in lacks, whichever thread wants it."""
    if name.startswith("__"):
        raise AttributeError(name)
    _stand_ins.remove()
    return getattr(import_module(module), name)


class _Symbol:
    """What no size of a tensor is: only the compiler computes with unknown ones."""


class _Compiled:
    """What no model is."""


def _unmarked(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
    return function or _unmarked


def _transform_get_item_to_index() -> Any:
    """The real one, for masks that are made by vmap."""
    return import_module(_TRACING).TransformGetItemToIndex()


@contextmanager
def _alone() -> Iterator[None]:
    """There is one process: transformers asks once, and remembers the answer."""
    import torch

    asked = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available = asked
