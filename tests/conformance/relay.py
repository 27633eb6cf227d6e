"""The program that the suite starts for each client scenario: it sends the task to the running harness and waits.

Run as `python -I relay.py PORT URL`. Starting the product for each of a hundred scenarios would take minutes.
"""

import json
import os
import socket
import sys


def main(port: str, url: str) -> int:
    """Returns the exit code from the harness; 1 when the harness has ended."""
    task = {
        "url": url,
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "revision": os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    }
    with socket.create_connection(("127.0.0.1", int(port))) as connection, connection.makefile("rw") as stream:
        stream.write(json.dumps(task) + "\n")
        stream.flush()
        answer = json.loads(stream.readline() or '{"code": 1, "said": "the harness went away"}')
    print(answer["said"], file=sys.stderr)
    return answer["code"]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
