"""Why a command could not do what it was asked: one tree, each class with its exit code.

OpsError
├── NotRunning        no daemon on the admin socket
├── NotUnderstood     an answer of another version, or of something else
├── BadConfig         config.yaml cannot be read as settings
├── DemoModelFailed   the demo model could not be fetched or converted
├── BenchFailed       a measurement could not be made
├── UserFailed        the people of a state directory could not be read or changed
└── InstallFailed     the service could not be laid down or taken away
"""

from dataclasses import dataclass
from typing import ClassVar

from ops.exit_codes import ExitCode


@dataclass(eq=False)
class OpsError(Exception):
    """Root of the tree; `message` is shown to the person as it is."""

    message: str
    code: ClassVar[ExitCode] = ExitCode.FAILED

    def __str__(self) -> str:
        return self.message


class NotRunning(OpsError):
    """No daemon answers on the admin socket."""

    code = ExitCode.NOT_RUNNING


class NotUnderstood(OpsError):
    """The daemon answered in words this version does not know."""

    code = ExitCode.UNKNOWN


class BadConfig(OpsError):
    """The configuration file is at fault; the message names the place."""


class DemoModelFailed(OpsError):
    """The demo model could not be made ready; the message says what to do."""


class BenchFailed(OpsError):
    """A measurement could not be made."""


class UserFailed(OpsError):
    """The people of a state directory could not be read or changed; the message says what to do."""


class InstallFailed(OpsError):
    """The service could not be laid down or taken away; what was done before stays and is not done twice."""
