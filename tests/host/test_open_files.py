"""A daemon started from a shell may hold as many connections as one that systemd starts."""

import resource
from collections.abc import Iterator

import pytest

from daemon.host.open_files import allow_open_files


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_low_limit_is_raised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert allow_open_files(512) == 512
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, hard)


def test_limit_goes_no_further_than_the_system_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert allow_open_files(hard + 1) == hard


def test_limit_that_is_high_enough_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allow_open_files(16) == before[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
