"""`make bench NAME=…`, overhead, health or prefix: the project's own figures. The last line printed is one JSON document."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ops import demo_model
from ops.bench import health, overhead, prefix
from ops.errors import OpsError
from ops.exit_codes import ExitCode
from ops.options import print_json
from ops.progress_bars import bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make bench NAME=…", description=__doc__)
    parser.add_argument("name", choices=["overhead", "health", "prefix"])
    parser.add_argument("--runs", type=int, default=5, help="runs of each level; the median counts (overhead)")
    parser.add_argument("--tokens", type=int, help="tokens a run on the null backend (overhead)")
    parser.add_argument("--demo-tokens", type=int, help="tokens a stream on the demo model")
    parser.add_argument("--conversation-tokens", type=int, help="length the conversation grows to (prefix)")
    given = parser.parse_args(arguments)
    state = Path(os.environ.get("EXL3D_TEST_STATE") or Path.home() / ".cache" / "exl3d" / "test-state")
    try:
        if given.name == "prefix":
            tokens = cast("int | None", given.conversation_tokens) or prefix.Size().tokens
            print_json(asyncio.run(prefix.measure(prefix.Size(tokens=tokens))))
            return ExitCode.OK
        with bars() as progress:
            model = demo_model.make_ready(state, progress)
        if given.name == "health":
            size = health.Size(tokens=cast("int | None", given.demo_tokens) or health.Size().tokens)
            print_json(asyncio.run(health.measure(model, size)))
        else:
            usual = overhead.Size()
            wanted = overhead.Size(
                runs=cast("int", given.runs),
                null_tokens=cast("int | None", given.tokens) or usual.null_tokens,
                demo_tokens=cast("int | None", given.demo_tokens) or usual.demo_tokens,
            )
            print_json(asyncio.run(overhead.measure(model, wanted)))
    except OpsError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
