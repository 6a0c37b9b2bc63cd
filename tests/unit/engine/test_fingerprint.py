"""A fingerprint is another one wherever samples could be others."""

from pathlib import Path

import pytest

from learnloop_service.training.engine import fingerprint as module
from learnloop_service.training.engine.fingerprint import fingerprint
from learnloop_service.training.engine.registry.checkpoints import FileDigest, Manifest
from learnloop_service.training.protocol.model_facts import Reproducibility
from learnloop_service.training.tuning import Tuning

EXACT = Reproducibility(True, "alike with one thread (MKL_CBWR=AVX2,STRICT)")


def checkpoint(sha256: str = "a", created: str = "") -> Manifest:
    files = {"model.safetensors": FileDigest(9, sha256)}
    return Manifest(0, "p/n", "learnloop/tiny", created=created, files=files)


def test_it_is_that_of_what_samples_whatever_its_name() -> None:
    assert fingerprint(EXACT, Tuning(), checkpoint()) == fingerprint(EXACT, Tuning(), checkpoint(created="now"))


def test_weights_mode_threads_and_processor_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = {
        fingerprint(EXACT, Tuning(), checkpoint()),
        fingerprint(EXACT, Tuning(), checkpoint("b")),
        fingerprint(Reproducibility(True, "alike with 1 and 2 threads (MKL_CBWR=AVX2,STRICT)"), Tuning(), checkpoint()),
        fingerprint(Reproducibility(True, "alike with one thread (MKL_CBWR=)"), Tuning(), checkpoint()),
    }
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Another 3000\n")
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    fingerprints.add(fingerprint(EXACT, Tuning(), checkpoint()))
    assert None not in fingerprints
    assert len(fingerprints) == 5


@pytest.mark.parametrize(
    ("reproducibility", "tuning"),
    [(Reproducibility(False, "a GPU"), Tuning()), (EXACT, Tuning("lora"))],
    ids=["GPU", "LoRA"],
)
def test_what_may_not_repeat_has_none(reproducibility: Reproducibility, tuning: Tuning) -> None:
    assert fingerprint(reproducibility, tuning, checkpoint()) is None
