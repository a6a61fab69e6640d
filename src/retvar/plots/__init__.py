"""Figures: an MDP as a graph, its solution, and how to save them.

:func:`draw_mdp` (``graph``) goes through five steps, a module each:

1. ``links``: what is drawn (an arrow an edge, or one for several alike), and all its texts;
2. ``layout``: where states, ends and starts stand;
3. ``routing``: how arrows run, so that they keep apart (``curves`` is the geometry);
4. ``labels``: where the texts at arrows go, so that they cover nothing;
5. ``paint``: put it all on the page.

:func:`solution` is ``answers``; ``style`` holds the looks of both, and :func:`save`.
"""

from retvar.plots.answers import solution
from retvar.plots.graph import draw_mdp
from retvar.plots.style import save

__all__ = ["draw_mdp", "save", "solution"]
