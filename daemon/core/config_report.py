"""What `python -m daemon.config_check` prints and `exl3ctl` reads: one JSON document about the daemon's configuration."""

import msgspec

from daemon.core.settings import Settings


class ConfigReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration, or why there is none."""

    problem: str | None
    """What is wrong with the file, with line and key; None where it can be read. With a problem the other fields say what holds
    without it.
    """
    model_problem: str | None = None
    """What is wrong with the model directory that it names."""
    people_problem: str | None = None
    """What is wrong with keys and people, in the configuration or in the state directory."""
    engine_problem: str | None = None
    """Why engines cannot run as configured, as far as that can be told without asking for GPUs."""
    source: str | None = None
    """The file that was read; None where there was none."""
    state_dir: str = ""
    """Absolute path of the state directory."""
    settings: Settings = Settings()

    @property
    def first_problem(self) -> str | None:
        """Why the daemon would not start; None where it would."""
        return self.problem or self.model_problem or self.people_problem or self.engine_problem
