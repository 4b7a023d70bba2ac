"""`exl3ctl key new NAME`: make an API key for a person."""

import secrets
import sys
from typing import Annotated

import typer

from daemon.core.keys import SALT_BYTES, SECRET_BYTES, hash_key, new_key
from ops.options import Json, print_json
from ops.yaml_words import scalar

_LONGEST_NAME = 64


def key_new(
    name: Annotated[str, typer.Argument(help="Who the key is for; appears in logs and metrics.")],
    json: Json = False,
) -> None:
    """Make a key. It is shown once; the configuration keeps only its salted hash.

    Prints the key, then the lines for `keys:` in config.yaml.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise typer.BadParameter(f"a name has 1 to {_LONGEST_NAME} printable characters", param_hint="NAME")
    salt = secrets.token_bytes(SALT_BYTES)
    key = new_key(salt, secrets.token_bytes(SECRET_BYTES))
    hashed = hash_key(key, salt)
    if json:
        print_json({"key": key, "entry": {"name": name, "hash": hashed}})
        return
    print(f"Give this key to {name}; it cannot be shown again:", file=sys.stderr)
    print(key)
    print("Put these lines under `keys:` in config.yaml:", file=sys.stderr)
    print(f"  - name: {scalar(name)}\n    hash: {hashed}")
