"""The requests for one training, as the journal has them.

Of the n-th request there are up to three entries, from the second on with `/n` behind the name (n from 1):
`train.intent` before it is sent, `train.job` with the id that came back, `train.withdrawn` if it surely was not begun.
"""

import json
from collections.abc import Mapping

from training.journal import Journal


class Attempts:
    """Of one iteration; `kept` is its journal so far."""

    def __init__(self, journal: Journal, iteration: int, step: int, kept: Mapping[str, str]) -> None:
        self._journal = journal
        self._iteration = iteration
        self._step = step
        intents = [value for name, value in kept.items() if name.partition("/")[0] == "train.intent"]
        self._count = len(intents)
        self.unsure = any(json.loads(value).get("unsure") for value in intents)
        """A request was sent although an earlier one may still come through."""
        last = self._suffix(self._count - 1)
        self.open = bool(intents) and f"train.withdrawn{last}" not in kept
        """The last request may have come through."""
        self.job: str | None = json.loads(kept.get(f"train.job{last}", "null"))
        """The job of the last request, if we were told."""

    def _suffix(self, number: int) -> str:
        return f"/{number}" if number > 0 else ""

    async def begin(self, *, unsure: bool) -> None:
        """Another request is about to be sent."""
        self.unsure |= unsure
        self._count += 1
        self.open = True
        await self._keep("train.intent", {"step": self._step} | ({"unsure": True} if unsure else {}))

    async def submitted(self, job_id: str) -> None:
        """The request came through."""
        await self._keep("train.job", job_id)

    async def withdraw(self) -> None:
        """The request did not come through."""
        self.open = False
        await self._keep("train.withdrawn", True)

    async def _keep(self, name: str, value: object) -> None:
        await self._journal.keep(self._iteration, f"{name}{self._suffix(self._count - 1)}", json.dumps(value))
