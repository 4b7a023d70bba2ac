"""`exl3ctl config example`: print config.yaml with every key explained."""

from ops.config_example import example
from ops.options import Json, print_json


def config_example(json: Json = False) -> None:
    """Print a configuration file with every key, its meaning and its default."""
    text = example()
    if json:
        print_json({"config": text})
    else:
        print(text, end="")
