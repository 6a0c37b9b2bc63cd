"""A script that renders conversations with a chat template from outside, in a process that can be ended.

Reads JSON lines from stdin: first `{"template"}`, then for each conversation `{"messages", "tools", "reply",
"special", "options", "seconds"}`, whose first two are JSON text. Writes a JSON line for each: `{"text", "seconds"}` or
`{"error"}`. The kernel ends the process when a rendering takes more processor time than `seconds` (SIGPROF), or when
there was nothing to render for a while (SIGALRM). The arguments are limits: bytes of memory, and characters of a text.
"""

import json
import resource
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

_IDLE_S = 300


def main() -> int:
    memory, characters = map(int, sys.argv[1:])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    template = json.loads(sys.stdin.readline())["template"]
    while True:
        signal.alarm(_IDLE_S)
        line = sys.stdin.readline()
        signal.alarm(0)
        if not line:
            return 0
        sys.stdout.write(json.dumps(_answer(template, json.loads(line), characters)) + "\n")
        sys.stdout.flush()


def _answer(template: str, request: dict[str, Any], characters: int) -> dict[str, Any]:
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])
    try:
        text = _render(template, request)
    except (MemoryError, RecursionError, OverflowError):
        return {"error": "it takes too much memory"}
    except Exception as error:  # a template can raise anything
        return {"error": str(error) or type(error).__name__}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if len(text) > characters:
        return {"error": f"it makes {len(text):,} characters of it; at most {characters:,} are allowed"}
    return {"text": text, "seconds": time.process_time() - began}


def _render(template: str, request: dict[str, Any]) -> str:
    messages, tools = json.loads(request["messages"]), json.loads(request["tools"])
    # As `apply_chat_template` does, because many templates would show None as a word.
    chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
    rendered: Any = render_jinja_template(
        conversations=[chat],
        tools=tools,
        chat_template=template,
        add_generation_prompt=request["reply"],
        **request["special"],
        **_options(**request["options"]),
    )
    return str(rendered[0][0])


def _options(enable_thinking: bool | None, date: str | None) -> dict[str, Any]:
    """Return the variables of a template for the fields of TemplateOptions, and set the day that it can ask for."""
    day = datetime.fromisoformat(date) if date else None
    setattr(chat_template_utils, "datetime", _Clock(day))  # noqa: B010
    return {} if enable_thinking is None else {"enable_thinking": enable_thinking}


class _Clock:
    """Replaces the class that `strftime_now` asks for the time, because a template cannot be given functions."""

    def __init__(self, day: datetime | None) -> None:
        self._day = day

    def now(self) -> datetime:
        return self._day or datetime.now().astimezone()


if __name__ == "__main__":
    sys.exit(main())
