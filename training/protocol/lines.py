"""Lines of a streamed body."""

from collections.abc import AsyncIterable, AsyncIterator


async def lines_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the complete lines without their line feeds. Only a line feed ends a line, because messages can contain
    U+2028, U+0085 and other separators, at which HTTP clients cut too."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
