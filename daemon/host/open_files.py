"""How many files this process may have open at once: each client is one, and shells often begin with 1,024 or fewer."""

import resource

WANTED = 65536
"""As in the systemd unit."""


def allow_open_files(wanted: int = WANTED) -> int:
    """Raise the soft limit to `wanted`, as far as the hard one goes; gives the limit that holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
