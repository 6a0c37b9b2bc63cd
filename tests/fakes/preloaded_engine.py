"""Imports the modules of an engine, in the environment of an engine."""

import os

from learnloop_service.training.engine.cpu_mode import set_cpu_mode

set_cpu_mode()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import uvicorn  # noqa: E402,F401

import learnloop_service.training.engine.http.server  # noqa: E402
import learnloop_service.training.engine.trainer.pretrained  # noqa: E402
import learnloop_service.training.engine.workers.process  # noqa: E402, F401
