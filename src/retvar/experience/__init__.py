"""Experience from environments, data sets and logs, as one stream of transitions."""

from retvar.experience.environments import from_gymnasium
from retvar.experience.growing import Growing
from retvar.experience.linear_worlds import from_linear_gaussian
from retvar.experience.minari import from_minari
from retvar.experience.recording import recorded, write_table
from retvar.experience.stream import Counts, Experience
from retvar.experience.tables import from_table

__all__ = [
    "Counts",
    "Experience",
    "Growing",
    "from_gymnasium",
    "from_linear_gaussian",
    "from_minari",
    "from_table",
    "recorded",
    "write_table",
]
