"""Exit codes of the daemon and of engine processes: a vocabulary that units and supervisors match on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """sysexits.h where it has a word for it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DEVICE = 70
    """EX_SOFTWARE: a sticky device error; a new process may help."""
    NO_MEMORY = 71
    """EX_OSERR: the model does not fit; a smaller memory budget may help."""
    CONFIG = 78
    """EX_CONFIG: a person must change something; restarting does not help."""
