"""Run inside the container: stream one chat from the daemon and say what came. `python client.py PORT TOKENS`.

Prints `first` at the first piece, then, at the end, one JSON line with the text, the finish reason and whether [DONE] came.
"""

import json
import sys
from http.client import HTTPConnection


def main() -> None:
    """Stream one chat."""
    port, tokens = int(sys.argv[1]), int(sys.argv[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": tokens, "ignore_eos": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text, finish, done, error = "", None, False, None
    for raw in answer:
        line = raw.decode().strip()
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            error = chunk.get("error", error)
            for choice in chunk.get("choices", []):
                piece = choice["delta"].get("content") or ""
                if piece and not text:
                    sys.stdout.write("first\n")
                    sys.stdout.flush()
                text += piece
                finish = choice["finish_reason"] or finish
    sys.stdout.write(json.dumps({"status": answer.status, "text": text, "finish": finish, "done": done, "error": error}) + "\n")


if __name__ == "__main__":
    main()
