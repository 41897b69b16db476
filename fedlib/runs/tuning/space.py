"""A search space, as a value that prints as code and knows nothing of who searches it."""

from __future__ import annotations

from typing import Any

from fedlib.values import key_of, value


@value
class Uniform:
    """A number between ``low`` and ``high``, uniform in itself or in its logarithm (``log``)."""

    low: float
    high: float
    log: bool = True

    def check(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"low must be below high, and above 0 for log, got {self}")

    def domain(self, tune: Any) -> Any:
        """Return it as Ray Tune names it."""
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)


@value
class Choice:
    """One of some values."""

    of: tuple[Any, ...]

    def check(self) -> None:
        if not self.of:
            raise ValueError("Choice.of must name at least one value")
        try:
            key_of(self, version=0)
            hash(self.of)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Choice.of must hold numbers, text and values: {error}") from None

    def domain(self, tune: Any) -> Any:
        """Return it as Ray Tune names it."""
        return tune.choice(list(self.of))


@value
class Space:
    """What is searched: ``axes`` are pairs of a parameter's name and its ``Uniform | Choice``."""

    axes: tuple[tuple[str, Any], ...]

    def check(self) -> None:
        names = [name for name, _ in self.axes]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a space needs axes with different names, got {names}")
        for name, axis in self.axes:
            if not isinstance(axis, Uniform | Choice):
                raise TypeError(f"Space.axes: {name!r} must be a Uniform or a Choice, got {axis!r}")

    def domains(self, tune: Any) -> dict[str, Any]:
        """Return the space as Ray Tune names it."""
        return {name: axis.domain(tune) for name, axis in self.axes}
