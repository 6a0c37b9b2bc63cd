"""What forks and deletions of runs ask of the engine."""

from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.backends.embedded import EmbeddedBackend

PARENT = ModelSpec("verbs", "parent", "learnloop/tiny")


async def test_a_model_is_forked_from_a_checkpoint_and_outlives_it(backend: EmbeddedBackend) -> None:
    assert await backend.checkpoints("verbs", "parent") == frozenset()
    await backend.register(PARENT)
    assert await backend.checkpoints("verbs", "parent") == {0}
    fork = ModelSpec("verbs", "fork", "verbs/parent@0")
    await backend.register(fork)
    await backend.delete(PARENT)
    assert await backend.checkpoints("verbs", "parent") == frozenset()
    assert await (await backend.register(fork)).step() == 0  # as a takeover does it
    await backend.delete(fork)
    await backend.delete(fork)  # a repetition changes nothing
    assert await backend.checkpoints("verbs", "fork") == frozenset()
