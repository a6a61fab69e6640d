"""The lab: a notebook in the browser on which learners converge; ``retvar lab`` serves it.

- ``app``: the notebook; its cells are the code that the page shows;
- ``charts``, ``words``: Altair charts, and sentences that follow the numbers;
- ``mdp_table``: an MDP as a table that is edited;
- ``start``: the server, on this machine alone.
"""
