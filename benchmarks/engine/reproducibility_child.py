"""One measurement of benchmarks.engine.reproducibility, in a separate process because MKL reads its mode only once.

Prints one JSON object: for `products`, how many of the tiny base's matrix products differ from the same rows of a
larger one; for `learn`, the SHA-256 of the weights after one iteration, and the seconds it took.
"""

import argparse
import ctypes
import hashlib
import json
import mmap
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.learning.engine_learning import CONFIG, Agent, rewarded_groups

SHAPES = ((192, 320), (192, 192), (192, 1024), (512, 192), (192, 1030))
"""Inputs and outputs of the tiny base's layers."""
ROWS = range(4, 132)
"""Numbers of rows in a product; the engine uses at least 4."""

SMALL = replace(CONFIG, groups_per_iteration=3, rollouts_per_group=8)


def products(threads: int) -> dict[str, object]:
    """Compare products of M rows with the same rows of a product of 4,096."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    digest, differing = hashlib.sha256(), 0
    for inputs, outputs in SHAPES:
        rows = torch.rand(4096, inputs, generator=generator) - 0.5
        weight = torch.rand(outputs, inputs, generator=generator) - 0.5
        whole = F.linear(rows, weight)
        digest.update(whole.numpy().tobytes())
        differing += sum(not torch.equal(F.linear(rows[:count], weight), whole[:count]) for count in ROWS)
    return {"differing": differing, "products": len(SHAPES) * len(ROWS), "sha256": digest.hexdigest()}


def learn(threads: int, train_threads: int) -> dict[str, object]:
    """Do the email agent's first iteration: 24 rollouts and a GRPO step."""
    with tempfile.TemporaryDirectory() as directory:
        agent = Agent(Path(directory), "cpu", train_threads=train_threads)
        torch.set_num_threads(threads)
        started = time.perf_counter()
        groups = rewarded_groups(agent, 0, 1, SMALL)
        sampled = time.perf_counter()
        torch.set_num_threads(1)  # each for one of the batches that are computed at the same time
        agent.train(groups, CONFIG.learning_rate)
        trained = time.perf_counter()
        newest = max(Path(directory).glob("models/*/*/checkpoints/*/model.safetensors"))
        return {
            "sha256": hashlib.sha256(newest.read_bytes()).hexdigest(),
            "sampling_s": sampled - started,
            "training_s": trained - sampled,
            "cpu_s": time.process_time(),
        }


def take_the_code_for_intel() -> None:
    """Make MKL treat this processor as Intel's, by overwriting the two functions that check its vendor.

    The kernels that MKL reserves for Intel then run on any x86 processor with AVX2.
    """
    library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", "libtorch_cpu.so")))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    return_one = b"\xb8\x01\x00\x00\x00\xc3"  # mov eax, 1; ret
    for name in ("mkl_serv_intel_cpu", "mkl_serv_intel_cpu_true"):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        if protect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), everything):
            raise OSError(ctypes.get_errno(), "mprotect")
        ctypes.memmove(address, return_one, len(return_one))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("products", "learn"))
    parser.add_argument("--as-intel", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--train-threads", type=int, default=1)
    options = parser.parse_args()
    if options.as_intel:
        take_the_code_for_intel()
    work = {
        "products": lambda: products(options.threads),
        "learn": lambda: learn(options.threads, options.train_threads),
    }
    print(json.dumps(work[options.work]()))


if __name__ == "__main__":
    main()
