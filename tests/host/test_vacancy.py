"""When a dead engine's GPU memory counts as back."""

from dataclasses import dataclass, field

from daemon.host.vacancy import SLACK_MIB, UsedMemory, Vacancy


@dataclass
class Gauge:
    """Readings as the test likes."""

    reading: UsedMemory | None = None
    asked: list[bool] = field(default_factory=list[bool])

    def used_mib(self) -> UsedMemory | None:
        return self.reading

    def read_soon(self) -> None:
        self.asked.append(True)


def test_machine_without_readings_waits_for_nothing() -> None:
    gauge = Gauge()
    vacancy = Vacancy(gauge)
    vacancy.remember()
    assert vacancy.vacated(5)
    assert gauge.asked == []


def test_only_a_reading_made_after_the_end_counts() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500}))
    vacancy = Vacancy(gauge)
    vacancy.remember()
    assert not vacancy.vacated(5)
    assert gauge.asked == [True]
    gauge.reading = UsedMemory(6, {0: 9000})
    assert not vacancy.vacated(5)
    assert vacancy.words() == "GPU 0: 9000 MiB used, 500 before"
    gauge.reading = UsedMemory(7, {0: 500 + SLACK_MIB})
    assert vacancy.vacated(5)


def test_gpu_that_does_not_answer_any_more_has_not_come_back() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500, 1: 600}))
    vacancy = Vacancy(gauge)
    vacancy.remember()
    gauge.reading = UsedMemory(6, {0: 500})
    assert not vacancy.vacated(5)
    assert vacancy.words() == "GPU 1: unknown MiB used, 600 before"
    gauge.reading = None
    assert not vacancy.vacated(5)
    assert vacancy.words() == "no reading of the GPUs' memory"


def test_gpus_of_other_engines_do_not_matter() -> None:
    gauge = Gauge(UsedMemory(1, {0: 500, 1: 600}))
    vacancy = Vacancy(gauge, frozenset({0}))
    vacancy.remember()
    gauge.reading = UsedMemory(6, {0: 500, 1: 11_000})
    assert vacancy.vacated(5)
