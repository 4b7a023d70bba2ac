"""`exl3ctl engine check`: what this machine is, what fits it, what is missing, and what is installed."""

import sys
from importlib import metadata

import typer

from ops import machine_words
from ops.exit_codes import ExitCode
from ops.machine import ThisMachine, look
from ops.machine_plan import Device, plan
from ops.options import Json, print_json


def engine_check(json: Json = False) -> None:
    """Say what the engine will run on, and what is missing for it.

    The same finding as `make install`, except that the list of prebuilt exllamav3 wheels is not asked for.
    Exit code 1 where something is missing.
    """
    machine = look(ThisMachine())
    decided = plan(machine)
    installed = {name: _version(name) for name in ("torch", "exllamav3")}
    advice = _advice(decided.device, installed)
    if json:
        needs = [{"what": need.what, "why": need.why, "how": need.how} for need in decided.needs]
        print_json({"machine": machine, "plan": decided, "needs": needs, "installed": installed, "advice": advice})
    else:
        for heading, text in machine_words.finding(machine, decided):
            print(f"{heading:<16}{text}")
        for name, version in installed.items():
            print(f"{f'installed {name}':<22}{version or 'not installed'}")
        for line in (*decided.notes, *machine_words.needs(decided), *advice):
            print(line, file=sys.stderr)
    if decided.needs or advice:
        raise typer.Exit(ExitCode.FAILED)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _advice(device: Device, installed: dict[str, str | None]) -> list[str]:
    """Where what is installed is not what the machine wants."""
    torch = installed["torch"]
    if torch is None or installed["exllamav3"] is None:
        return ["Run `make install`: the engine is not installed."]
    if device is Device.CUDA and "+cpu" in torch:
        return ["Run `make clean install`: torch is a CPU build, but a GPU is here."]
    return []
