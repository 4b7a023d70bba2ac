"""`exl3ctl resume`: take requests again after a drain."""

from ops.admin_socket import command, find_socket
from ops.options import Config, Json, StateDir
from ops.outcomes import show


def resume(config: Config = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Take requests again after `exl3ctl drain`."""
    show(command(find_socket(config, state_dir), "resume"), json=json)
