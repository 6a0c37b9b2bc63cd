"""Imports the modules of an engine, in the environment of an engine."""

import os

from training.engine.cpu_mode import set_cpu_mode

set_cpu_mode()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import uvicorn  # noqa: E402,F401

import training.engine.http.server  # noqa: E402
import training.engine.trainer.pretrained  # noqa: E402
import training.engine.workers.process  # noqa: E402, F401
