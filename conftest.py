"""For all tests: modules that need an extra which is not installed are not looked at."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/retvar/deep/*"]
if not find_spec("stable_baselines3"):
    collect_ignore_glob.append("src/retvar/deep/callback.py")
if not find_spec("marimo"):
    collect_ignore_glob.append("src/retvar/lab/*")
