"""Options that comparisons of a sweep and figures of it share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retvar import arguments
from retvar.errors import InputError
from retvar.sweep.statistics import Array, Interval, bootstrap_interval

__all__ = ["ComparisonOptions"]

MIN_DOMAINS = 10  # from which intervals generalise to other domains by default


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Which errors are compared, and how intervals are computed.

    Functions that take options also take these fields as keywords, which replace those of
    `options`.

    Parameters
    ----------
    what
        Which error: ``"variance_rmse"``, ``"value_rmse"``, or that of a higher moment.
    at
        When: a step or episode that was recorded, or −1 for the last one.
    where
        Settings to hold fixed, such as ``{"alpha": 0.1}``; a list means any of its values.
    over
        Over what intervals generalise: ``"runs"``, more runs on these domains, or ``"domains"``,
        more domains like these. Default: domains if there are at least ten.
    level, resamples, seed
        Of the intervals; see :func:`bootstrap_interval`.

    Examples
    --------
    >>> ComparisonOptions(level=0.9).resamples
    2000
    >>> ComparisonOptions(level=90)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: level = 90: must lie between 0 and 1, such as 0.9
    """

    what: str = "variance_rmse"
    at: int = -1
    where: Mapping[str, Any] | None = None
    over: str | None = None
    level: float = 0.95
    resamples: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        resamples = arguments.integer("resamples", self.resamples, 100)
        object.__setattr__(self, "level", arguments.level("level", self.level))
        object.__setattr__(self, "resamples", resamples)
        object.__setattr__(self, "seed", arguments.integer("seed", self.seed, 0))
        if self.over is not None:
            arguments.choice("over", self.over, ("runs", "domains"))

    @classmethod
    def of(cls, options: ComparisonOptions | None = None, **keywords: Any) -> ComparisonOptions:
        """Options with some fields replaced by keywords.

        >>> ComparisonOptions.of(ComparisonOptions(seed=1), level=0.9).seed
        1
        """
        found = cls() if options is None else options
        arguments.instance("options", found, ComparisonOptions, "ComparisonOptions")
        unknown = set(keywords) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            known = ", ".join(field.name for field in dataclasses.fields(cls))
            raise InputError("options", ", ".join(sorted(unknown)), f"unknown; they are {known}")
        return dataclasses.replace(found, **keywords)

    def resolve(self, domains: int) -> ComparisonOptions:
        """The options with the default of `over` for this number of domains.

        >>> ComparisonOptions().resolve(3).over
        'runs'
        """
        if self.over == "domains" and domains < 2:
            raise InputError("over", "'domains'", "there is one domain; give 'runs'")
        over = self.over or ("domains" if domains >= MIN_DOMAINS else "runs")
        return dataclasses.replace(self, over=over)

    def interval(
        self, data: Array, statistic: Callable[..., Any], *, stratified: bool = False
    ) -> Interval:
        """The bootstrap interval of a statistic of [..., run]."""
        return bootstrap_interval(
            data, statistic, self.level, self.resamples, self.seed, stratified=stratified
        )
