"""What earlier loads taught about memory: memory.json of the state directory, written by `host/plan_store.py`."""

from pathlib import Path

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.vram_learned import FILE, Learned


def read_learned(state_dir: Path) -> Learned:
    """What is known; nothing where there is no file. Raises ConfigError where it cannot be read: whoever asks can do without."""
    path = state_dir / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Learned)
    except FileNotFoundError:
        return Learned()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot be read ({problem})", str(path)) from problem
