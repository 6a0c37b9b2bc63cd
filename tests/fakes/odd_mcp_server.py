"""An MCP server over stdio that answers as its arguments say: `odd_mcp_server.py TOOLS REPLY`.

TOOLS is the result of `tools/list` as JSON. REPLY is the line that answers a call; `ID` stands for the call's id.
"""

import json
import sys


def main() -> None:
    """Answer the messages of standard input."""
    tools, reply = sys.argv[1:]
    for line in sys.stdin:
        message = json.loads(line)
        number = json.dumps(message.get("id"))
        match message["method"]:
            case "initialize":
                version = message["params"]["protocolVersion"]
                about = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "odd", "version": "1"}}
                answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": about})
            case "tools/list":
                answer = f'{{"jsonrpc": "2.0", "id": {number}, "result": {tools}}}'
            case "tools/call":
                answer = reply.replace("ID", number).replace("ARGUMENTS", json.dumps(json.dumps(message["params"])))
            case _:
                continue
        sys.stdout.buffer.write(answer.encode("latin-1") + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
