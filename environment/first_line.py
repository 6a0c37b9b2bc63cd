"""What a log line or a message says of an error."""


def first_line(error: BaseException) -> str:
    """The first line of its text, or its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
