"""Speaks the part of vLLM's protocol that the engine uses: `python vllm_server.py serve DIR --uds PATH`.

Samples reveal which weights they come from: the ids are a digest of the weights' files, the prompt and the seed. Files
in the directory `FAKE_VLLM` request faults, each once: `die`, `die-midway`, `fail`, `hang`, `nonsense`, or (before it
listens) `broken`. If a file `always` exists, the faults repeat. Requests are recorded in the same directory.
"""

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn, ThreadingUnixStreamServer
from typing import Any

NOTES = Path(os.environ.get("FAKE_VLLM", ""))
LOGPROB = -0.5
SCORED = -2.0
"""Log-probability of every token of a prompt."""


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def weights_in(directory: str, name: str) -> str:
    return hashlib.sha256((Path(directory) / name).read_bytes()).hexdigest()


def expected_ids(weights: str, prompt: list[int], seed: int, count: int) -> list[int]:
    """Return the sample from weights with that SHA-256."""
    return list(digest(weights, prompt, seed)[:count])


class State:
    """The loaded weights and the recorded requests."""

    def __init__(self, base: str, context: int) -> None:
        self.base = base
        self.context = context
        self.whole = weights_in(base, "model.safetensors")
        self.adapters: dict[str, str] = {}
        self.tokens = 0
        self.lock = threading.Lock()

    def note(self, kind: str, body: Any) -> None:
        with self.lock, (NOTES / "notes.jsonl").open("a") as file:
            file.write(json.dumps({"pid": os.getpid(), "kind": kind, "body": body}) + "\n")


def is_requested(fault: str) -> bool:
    """Return whether a test requests that fault now."""
    if (NOTES / "always").exists():
        return (NOTES / fault).exists()
    try:
        (NOTES / fault).unlink()
    except FileNotFoundError:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, rather than a line per request."""

    def address_string(self) -> str:
        return "local"

    def do_GET(self) -> None:
        state = self.state
        if self.path == "/version":
            self.answer({"version": "0.0.fake"})
        elif self.path == "/health":
            self.send(503 if (NOTES / "dead").exists() else 200, b"", "text/plain")
        elif self.path == "/v1/models":
            model = {"id": "base", "root": state.base, "parent": None, "max_model_len": state.context}
            self.answer({"data": [model]})
        elif self.path == "/metrics":
            lines = [
                'vllm:num_requests_running{engine="0"} 0.0',
                'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0',
                f'vllm:generation_tokens_total{{engine="0"}} {float(state.tokens)}',
            ]
            self.send(200, "\n".join(lines).encode(), "text/plain")
        else:
            self.answer({"error": {"message": "no such route"}}, 404)

    def do_POST(self) -> None:
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        state.note(self.path, body)
        state.note("authorization", self.headers["authorization"])
        if self.path == "/v1/load_lora_adapter":
            state.adapters[body["lora_name"]] = weights_in(body["lora_path"], "adapter_model.safetensors")
            self.send(200, b"Success", "text/plain")
        elif self.path == "/v1/unload_lora_adapter":
            del state.adapters[body["lora_name"]]
            self.send(200, b"Success", "text/plain")
        elif self.path == "/collective_rpc":
            [directory] = body["args"]
            assert sorted(Path(directory).glob("*.safetensors")) == [Path(directory) / "model.safetensors"]
            state.whole = weights_in(directory, "model.safetensors")
            self.answer({"results": [None]})
        elif self.path.startswith("/reset_prefix_cache"):
            self.answer({"success": True})
        elif self.path == "/v1/completions":
            self.complete(body)
        else:
            self.answer({"error": {"message": "no such route"}}, 404)

    def complete(self, body: Any) -> None:
        state, model = self.state, body["model"]
        if is_requested("die"):
            os._exit(9)
        if is_requested("hang"):
            time.sleep(600)
        if (NOTES / "dead").exists() or is_requested("fail"):
            return self.answer({"error": {"message": "EngineCore encountered an issue"}}, 500)
        if is_requested("nonsense"):
            return self.answer({"choices": [{"token_ids": [1], "logprobs": None, "finish_reason": "stop"}]})
        if model != "base" and model not in state.adapters:
            return self.answer({"error": {"message": f"The model `{model}` does not exist."}}, 404)
        if "prompt_logprobs" in body:
            positions = [None, *({str(id): {"logprob": SCORED}} for id in body["prompt"][1:])]
            return self.answer({"choices": [{"prompt_logprobs": positions}]})
        weights = state.whole + state.adapters.get(model, "")
        ids = expected_ids(weights, body["prompt"], body["seed"], min(body["max_tokens"], 8))
        state.tokens += len(ids)
        if not body["stream"]:
            return self.answer(completion(ids, body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number, id in enumerate(ids):
            piece = completion([id], body)
            piece["choices"][0]["finish_reason"] = "length" if number == len(ids) - 1 else None
            piece["choices"][0]["text"] = "one\u2028two\u2029three\u0085"  # vLLM writes these as they are
            event = json.dumps(piece | {"usage": None}, ensure_ascii=False)
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()
            if is_requested("die-midway"):
                os._exit(9)
        self.wfile.write(b'data: {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, body: Any, status: int = 200) -> None:
        self.send(status, json.dumps(body).encode(), "application/json")

    def send(self, status: int, raw: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def completion(ids: list[int], body: Any) -> dict[str, Any]:
    logprobs = {
        "token_logprobs": [LOGPROB] * len(ids),
        "top_logprobs": [{f"token_id:{id}": LOGPROB, "token_id:1": -3.0, "token_id:2": -4.0} for id in ids],
    }
    choice = {"token_ids": ids, "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


class _TcpServer(ThreadingMixIn, TCPServer):
    daemon_threads = True


class _UnixServer(ThreadingUnixStreamServer):
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("base")
    parser.add_argument("--uds")
    parser.add_argument("--max-model-len", type=int, default=128)
    options, _ = parser.parse_known_args()
    (NOTES / "dead").unlink(missing_ok=True)
    if is_requested("broken"):
        sys.exit("INFO says\nERROR the model cannot be read")
    Handler.state = State(options.base, options.max_model_len)
    Handler.state.note("started", sys.argv[1:])
    if options.uds:
        _UnixServer(options.uds, Handler).serve_forever()
    server = _TcpServer(("127.0.0.1", 0), Handler)
    (NOTES / "port").write_text(str(server.server_address[1]))
    server.serve_forever()


if __name__ == "__main__":
    main()
