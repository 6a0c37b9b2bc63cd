"""What is said of a vLLM's end."""

import asyncio

from learnloop_service.training.engine.vllm.output import Output

WARNING = (
    "(APIServer pid=7) WARNING 11-23 14:34:00 [system_utils.py:1] Found ulimit of 1024. This can "
    "cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"
)
ERROR = "(EngineCore pid=9) ERROR 11-23 14:34:18 [core.py:1] ValueError: more memory is needed"


async def test_an_error_that_a_warning_names_is_not_why_it_ended() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(f"{WARNING}\n{ERROR}\n".encode())
    stream.feed_eof()
    output = Output()
    await output.read(stream)
    assert output.why == "It said: ValueError: more memory is needed"
