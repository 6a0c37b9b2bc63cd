"""A webhook dispatcher in a separate process, for benchmarks/durability/webhooks.py to kill."""

import argparse
import asyncio
from contextlib import AsyncExitStack

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from learnloop_service.app.events.feed import EventFeed
from learnloop_service.app.logs import configure_logs
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.security.secret_box import SecretBox
from learnloop_service.app.webhooks.dispatcher import VISIBILITY_TIMEOUT_S, Dispatcher
from learnloop_service.app.webhooks.retries import RETRY_DELAYS_S
from learnloop_service.app.webhooks.sender import TIMEOUT_S, Sender

BOX = SecretBox(b"a key of the benchmark that is no secret")
GUARD = AddressGuard(["127.0.0.0/8"])
_QUICK_RETRY_DELAYS_S = (0.05,) * 60


async def dispatch(options: argparse.Namespace) -> None:
    """Dispatch until killed, with the same wake-ups as in the service."""
    url = parse_url(options.database)
    async with AsyncExitStack() as stack:
        database_engine = make_engine(url)
        stack.push_async_callback(database_engine.dispose)
        database = make_database(database_engine)
        retry_delays_s = _QUICK_RETRY_DELAYS_S if options.quick else RETRY_DELAYS_S
        sender = Sender(BOX, GUARD, options.timeout)
        dispatcher = Dispatcher(database, sender, retry_delays_s=retry_delays_s, visibility_timeout_s=options.hide)
        stack.push_async_callback(dispatcher.close)
        dispatcher.start()
        feed = EventFeed(database, url, on_hint=dispatcher.wake)
        stack.push_async_callback(feed.close)
        feed.start()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds of an attempt")
    parser.add_argument(
        "--hide", type=float, default=VISIBILITY_TIMEOUT_S, help="seconds until what was claimed is anybody's"
    )
    parser.add_argument("--quick", action="store_true", help="try again immediately")
    configure_logs("error", "json")
    asyncio.run(dispatch(parser.parse_args()))


if __name__ == "__main__":
    main()
