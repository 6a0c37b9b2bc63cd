"""Imports, makes and saves transformers' models without PyTorch's compiler and its distributed tensors: we use neither.

Together they are half of what the engine would import, and a restart waits for it, or its first checkpoint. Where they
are needed after all they are imported then. Whatever transformers wants of them beyond what is named here makes us
import everything.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

_COMPILER = "torch._dynamo"
_TRACING = f"{_COMPILER}._trace_wrapped_higher_order_op"
_DISTRIBUTED = "torch.distributed.tensor"
_MARKERS = ("allow_in_graph", "assume_constant_result", "disable")
_CLASSES = "transformers.models.auto.modeling_auto", "transformers.modeling_layers", "peft"

T = TypeVar("T")


def import_model_classes() -> None:
    """Once, before anything else imports them. Not thread-safe."""
    if "transformers.modeling_utils" in sys.modules:
        return

    def import_alone() -> None:
        with _alone():
            _import()

    without_compiler(import_alone, otherwise=_import)


def without_compiler(work: Callable[[], T], otherwise: Callable[[], T] | None = None) -> T:
    """What the work gives, which does not import the compiler on the way; where it cannot do without, what `otherwise`
    (by default the same work) gives with it. Not thread-safe.

    PyTorch asks the compiler to leave alone what it computes of tensors without data, as a model's are until its file
    is read.
    """
    if _COMPILER in sys.modules:
        return (otherwise or work)()
    try:
        with _without_compiler():
            return work()
    except (ImportError, AttributeError):
        return (otherwise or work)()


def _import() -> None:
    for name in _CLASSES:
        import_module(name)


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Its decorators, which mark functions for it, leave them as they are."""
    import torch

    compiler, tracing = ModuleType(_COMPILER), ModuleType(_TRACING)
    compiler.__path__ = []
    for name in _MARKERS:
        setattr(compiler, name, _unmarked)
    tracing.TransformGetItemToIndex = _transform_get_item_to_index  # type: ignore[attr-defined]
    compiler.eval_frame = SimpleNamespace(OptimizedModule=_Compiled)  # type: ignore[attr-defined]
    stubs = {_COMPILER: compiler, _TRACING: tracing}
    if _DISTRIBUTED not in sys.modules:
        stubs[_DISTRIBUTED] = ModuleType(_DISTRIBUTED)  # without its class: who asks whether a tensor is one goes on
    sys.modules |= stubs
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]
        vars(torch).pop("_dynamo", None)


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
