"""A client of the mail desk for the Python agents."""

import json
import os
from typing import Any

import httpx

Json = Any


class Done(Exception):
    """Raised when a tool call ended the task."""

    def __init__(self, outcome: Json) -> None:
        super().__init__()
        self.outcome = outcome


class Desk:
    """The mailbox of the task in the environment variables."""

    def __init__(self) -> None:
        self._http = httpx.Client(base_url=os.environ["MAIL_DESK_URL"], trust_env=False, timeout=60)
        self._session = os.environ["LEARNLOOP_SESSION"]
        opened = self._post("open", task=json.loads(os.environ["LEARNLOOP_TASK"]))
        self.messages, self.tools, self.max_turns = opened["messages"], opened["tools"], opened["max_turns"]
        if "READS_PROMPT" in os.environ:
            self._read_prompt(json.loads(os.environ.get("LEARNLOOP_PROMPT", "{}")))

    def _read_prompt(self, prompt: Json) -> None:
        """Bring the texts of a prompt instead of its own."""
        self.messages[0]["content"] = prompt.get("system", self.messages[0]["content"])
        for function in (tool["function"] for tool in self.tools):
            function["description"] = prompt.get(f"tool:{function['name']}", function["description"])

    def call(self, name: str, arguments: Json) -> str:
        """Return the result of a tool call. Raises Done."""
        result = self._post("call", name=name, arguments=arguments)
        if result["final"]:
            raise Done(result["outcome"])
        return str(result["content"])

    def end(self, reason: str) -> Json:
        """End the task without a final call and return its outcome."""
        return self._post("end", reason=reason)["outcome"]

    def _post(self, path: str, **body: Json) -> Json:
        return self._http.post(f"/{path}", json={"session": self._session, **body}).raise_for_status().json()
