"""Templates of strangers are rendered in processes that can be ended, several conversations at the same time."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

from learnloop_service.training.engine.text.template_process import TemplateProcess, _exchange

LINES = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
OPTIONS = {"enable_thinking": None, "date": None}


def rendered(processes: TemplateProcess, text: str) -> str:
    return processes.render([{"role": "user", "content": text}], None, {}, OPTIONS, reply=True)


def test_conversations_that_are_rendered_together_get_their_own_texts() -> None:
    processes = TemplateProcess(LINES)
    texts = [f"{number} " * (1 if number % 2 else 60_000) for number in range(24)]  # some are larger than a pipe
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(lambda text: rendered(processes, text), texts)) == [f"{text}\n" for text in texts]
    assert len(processes._idle) <= (os.cpu_count() or 1)


def test_a_process_that_ended_while_it_was_idle_is_replaced() -> None:
    processes = TemplateProcess(LINES)
    rendered(processes, "a")
    [idle] = processes._idle
    idle.send_signal(signal.SIGALRM)  # as the kernel does when there was nothing to render for a while
    idle.wait()
    assert rendered(processes, "b") == "b\n"
    assert processes._idle != [idle]
    assert idle.stdin is not None
    assert idle.stdin.closed, "its pipes are given back"


def test_a_process_that_does_not_answer_is_ended() -> None:
    processes = TemplateProcess(LINES)
    rendered(processes, "a")
    [idle] = processes._idle
    idle.send_signal(signal.SIGSTOP)
    assert _exchange(idle, json.dumps({"messages": "x" * 1_000_000}), 0.1) == b""
    assert idle.wait() == -signal.SIGKILL
