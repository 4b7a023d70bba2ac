"""The settings that hold now, for the parts of the API that read them with each request. A Reloadable."""

from daemon.core.settings import Settings


class InForce:
    """One a daemon. Read `settings` each time: it is replaced as a whole."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def reload(self, settings: Settings) -> None:
        """Take over new settings; requests that run keep what was decided about them."""
        self.settings = settings
