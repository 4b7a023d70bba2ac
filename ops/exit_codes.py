"""Exit codes of `exl3ctl`: what scripts may match on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The same meaning for every command."""

    OK = 0
    FAILED = 1
    """The command was understood and did not succeed."""
    USAGE = 2
    """The command line is wrong."""
    NOT_RUNNING = 3
    """No daemon answers on the admin socket."""
    UNKNOWN = 4
    """Something answered, but not in words this version understands."""
    INTERRUPTED = 130
    """Ctrl-C."""
