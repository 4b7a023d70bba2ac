"""`exl3ctl`: operate exl3d. Puts the commands together; each stands in its own file under `commands/`."""

import sys

import typer

from ops.commands.bench import bench
from ops.commands.config_check import config_check
from ops.commands.config_example import config_example
from ops.commands.drain import drain
from ops.commands.engine_check import engine_check
from ops.commands.health import health
from ops.commands.incidents import incidents
from ops.commands.install import install
from ops.commands.key_new import key_new
from ops.commands.logs import logs
from ops.commands.model_demo import model_demo
from ops.commands.plan import plan
from ops.commands.reload import reload
from ops.commands.restart import restart
from ops.commands.resume import resume
from ops.commands.status import status
from ops.commands.top import top
from ops.commands.uninstall import uninstall
from ops.commands.user import group as user
from ops.errors import OpsError


def application() -> typer.Typer:
    """The command tree, noun first."""
    root = typer.Typer(
        name="exl3ctl",
        help="Operate exl3d, the daemon that serves one EXL3 model to several people.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (status, top, health, incidents, logs, reload, drain, resume, restart, install, uninstall, plan, bench):
        root.command()(command)
    config = typer.Typer(help="The configuration file.", no_args_is_help=True)
    config.command("check")(config_check)
    config.command("example")(config_example)
    root.add_typer(config, name="config")
    model = typer.Typer(help="Models.", no_args_is_help=True)
    model.command("demo")(model_demo)
    root.add_typer(model, name="model")
    engine = typer.Typer(help="What the engine runs on.", no_args_is_help=True)
    engine.command("check")(engine_check)
    root.add_typer(engine, name="engine")
    root.add_typer(user(), name="user")
    key = typer.Typer(help="API keys.", no_args_is_help=True)
    key.command("new")(key_new)
    root.add_typer(key, name="key")
    return root


def main() -> None:
    """Entry point of the console script. Errors are one line on stderr and an exit code of `ops.exit_codes`."""
    try:
        application()()
    except OpsError as problem:
        print(f"exl3ctl: {problem}", file=sys.stderr)
        sys.exit(problem.code)


if __name__ == "__main__":
    main()
