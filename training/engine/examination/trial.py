"""Runs a few tokens through the engine's own sampling, before a base model is accepted."""

import torch
from transformers import PreTrainedModel

from learnloop_service.environment.first_line import first_line
from learnloop_service.training.engine.memory import is_out_of_memory
from learnloop_service.training.engine.weights.any_model import ModuleWeights, UnsupportedModel
from learnloop_service.training.engine.weights.attention import KEY_MULTIPLE
from learnloop_service.training.engine.weights.kv_cache import KVCache, Piece
from learnloop_service.training.engine.weights.weights import snapshot

_TOKENS = 8
_MOST_NATS = 0.01
"""Difference of a log-probability in float32 that rounding does not explain."""


def sampling_fault(model: PreTrainedModel) -> str | None:
    """Return why the engine cannot sample from a model on a CPU or train it, as a clause; None if it can.

    A few tokens are prefilled and decoded, and must have the probabilities that the model itself gives them, which
    training uses. Of a model on the device `meta` only the kind of its layers is examined.
    """
    if model.device.type == "meta":
        return _fault_of_layers(model)
    try:
        apart = _difference(model)
    except UnsupportedModel as error:
        return str(error)
    except Exception as error:  # models of unknown kinds can raise anything
        if is_out_of_memory(error):
            raise
        return f"it cannot compute a few tokens ({type(error).__name__}: {first_line(error)})"
    if apart < _MOST_NATS:
        return None
    return f"what is sampled differs from what is trained by {apart:.2g} nats a token"


def _fault_of_layers(model: PreTrainedModel) -> str | None:
    try:
        ModuleWeights(model, model.device, torch.float32)
    except UnsupportedModel as error:
        return str(error)
    except RuntimeError:  # a computation that depends on values or on a real device
        return None
    return None


def _difference(model: PreTrainedModel) -> float:
    """Return how far apart the probabilities of a token are in sampling and in training, in nats. Raises
    UnsupportedModel."""
    weights = snapshot(model)
    ids = torch.arange(1, _TOKENS + 1) % weights.vocab_size
    cache = KVCache(weights.kv, weights.pad_to_multiple_of, KEY_MULTIPLE)
    with torch.inference_mode():
        weights.prefill(cache, [Piece(0, 0, ids[:-1].numpy())])
        last = torch.full((cache.rows,), _TOKENS - 1)
        sampled = weights.decode(cache, ids[last], last, KEY_MULTIPLE)[0].log_softmax(-1)
        computed = model(input_ids=ids[None], use_cache=False).logits[0, -1].float().log_softmax(-1)
    return float((sampled.exp() * (sampled - computed).abs()).sum())
