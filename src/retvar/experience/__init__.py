"""Experience from outside: environments, data sets and logs, as one stream of transitions."""

from retvar.experience.stream import Experience, Tally

__all__ = ["Experience", "Tally"]
