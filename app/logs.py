"""Structured logs on standard error: one event per line, with the run and iteration that it belongs to."""

import logging
import math
import sys
import time
from typing import Any, Literal

import structlog


def configure_logs(level: str, style: Literal["auto", "console", "json"]) -> None:
    """Set up structlog and route the standard library's loggers through it."""
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("alembic", "httpx", "httpcore", "openai", "LiteLLM"):
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = name != "uvicorn.access"


class RepeatedLog:
    """A log for something that is retried again and again: it writes each event at most once per minute.

    A line reports how many equal events came since the previous line (`repeated`). Their other fields can differ.
    """

    def __init__(self, log: Any, period_s: float = 60.0) -> None:
        self._log = log
        self._period_s = period_s
        self._written: dict[str, tuple[float, int]] = {}
        """Time of each event's last line, and the number of events since then."""

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        now = time.monotonic()
        written_at, repeated = self._written.get(event, (-math.inf, 0))
        if now - written_at < self._period_s:
            self._written[event] = written_at, repeated + 1
            return
        self._written[event] = now, 0
        getattr(self._log, level)(event, **fields, **({"repeated": repeated} if repeated else {}))
