"""The lab: a live page in the browser on which learners converge; ``retvar lab`` serves it.

Views are models in plain Python: they hold settings, move on by steps, and give numbers, SVG and
the code that makes them. Only ``app`` and ``server`` import marimo.
"""
