"""Time for tests that must not depend on a real clock."""


class Clock:
    """Stands in for the module `time`: time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
