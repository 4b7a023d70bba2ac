"""Compiles a grammar to see whether it can be: `python -m daemon.api.grammar_trial KIND < TEXT`.

llguidance recurses along chains of rules and of `$ref`s, so that some tens of kilobytes overflow the stack and end the process,
and others keep it busy for minutes. Neither may happen in the front, where everybody's streams are: what is large is tried here,
in a process that may die. Nothing on stdout means that it compiles; otherwise there stands what is wrong with it.
"""

import resource
import subprocess
import sys
from pathlib import Path

from llguidance import LLMatcher, grammar_from

from daemon.core.errors import Exl3dError
from daemon.core.wire import Constraint, ConstraintKind

INLINE_CHARACTERS = 4096
"""Texts up to this size are compiled where they are: no chain in them is long enough to do harm."""
TRIAL_SECONDS = 10.0
_MEMORY = 2 * 2**30
"""Address space of a trial, in bytes."""
_ROOT = Path(__file__).resolve().parents[2]


class Undecided(Exl3dError):
    """A trial was given up. On another day, with less to do, it may end."""


def compile_here(kind: ConstraintKind, text: str) -> str:
    """What is wrong with a grammar; empty where nothing is."""
    try:
        return LLMatcher.validate_grammar(grammar_from(kind.value, text))
    except (ValueError, RecursionError) as problem:
        return str(problem)


def compile_apart(constraint: Constraint, seconds: float = TRIAL_SECONDS) -> str:
    """The same in a process of its own. Blocks for `seconds` at most; for a thread. Raises Undecided."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "daemon.api.grammar_trial", constraint.kind.value],
            input=constraint.text.encode(errors="replace"),
            capture_output=True,
            timeout=seconds,
            check=False,
            cwd=_ROOT,
            env={"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as problem:
        raise Undecided(f"it takes longer than {seconds:g} s to compile") from problem
    if done.returncode != 0:
        return "it is too deeply nested, or too large"
    return done.stdout.decode(errors="replace")


def main() -> None:
    """Entry point of the process."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    text = sys.stdin.buffer.read().decode()
    sys.stdout.write(compile_here(ConstraintKind(sys.argv[1]), text))


if __name__ == "__main__":
    main()
