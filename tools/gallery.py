"""Runs the examples, collects their pictures, and writes docs/gallery.md.

    python tools/gallery.py                  # all that this Python can run
    python tools/gallery.py cart_pole        # some of them
    python tools/gallery.py --page           # none: only write the page, from the recorded results

Pictures go to docs/figures/gallery, made small; processor times to docs/figures/gallery/times.json.
Examples that take too long, or need packages which are not there, keep their recorded results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, PAGE = ROOT / "examples", ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "figures" / "gallery"
TIMES = PICTURES / "times.json"
WIDTH, COLOURS = 900, 64  # of a picture: pixels, and colours of its palette
PLOT = "PLOT"  # stands for the name of the picture in the arguments


@dataclass(frozen=True)
class Example:
    """A script of examples/: what it shows, how it is run here, and what it needs."""

    name: str
    title: str
    text: str
    arguments: str = PLOT
    needs: str = ""  #: extra of retvar
    modules: tuple[str, ...] = ()  #: that have to be importable
    no_picture: str = ""  #: why there is none
    made_by: str = ""  #: command that makes the picture, where a run is too long for the gallery
    figure: str = ""  #: and where it puts the picture
    takes: str = ""  #: and how long that takes

    def command(self) -> str:
        """What to type, in the root of the repository."""
        plain = self.arguments.replace(PLOT, f"{self.name}.png")
        return self.made_by or f"python examples/{self.name}.py {plain}".rstrip()

    def can_run(self) -> bool:
        """Whether it is run here, and can be."""
        return (
            not self.made_by and not self.takes and all(map(importlib.util.find_spec, self.modules))
        )


SECTIONS: dict[str, tuple[Example, ...]] = {
    "Environments and logs": (
        Example(
            "clinic",
            "A clinic's log",
            "A messy table of patients, treatments and costs: transfers, missing costs, rows "
            "sent twice. The cost of a stay and its spread from every state, with intervals, "
            "beside the exact answer; the log of [a tutorial](tutorial-log.md).",
            arguments="visits.csv PLOT",
        ),
        Example(
            "grid_worlds",
            "Grid worlds, learned and solved",
            "A random policy walks FrozenLake and CliffWalking several times, and both worlds "
            "are also solved. Nine in ten of the 90% intervals should hold the exact answer; "
            "the picture has the last walk.",
            arguments="100000 10 PLOT",
        ),
        Example(
            "cart_pole",
            "Truncation is not termination",
            "CartPole is cut off after 500 steps. Who takes that for a fall learns too small a "
            "value; both are shown, with intervals.",
            arguments="100000 PLOT",
        ),
        Example(
            "mountain_car",
            "Mountain car with tile coding",
            "The cost of the way up and its spread, for a driver who errs three times in ten. "
            "Maps over position and velocity, checked against fresh returns.",
            arguments="200000 PLOT",
        ),
        Example(
            "off_policy_log",
            "One policy from the log of another",
            "A Parquet file with the probability of each action under two policies. The ratio "
            "weights every row, and the intervals hold the exact answer of the policy that did "
            "not act.",
            arguments="20000 PLOT",
            needs="data",
            modules=("pyarrow",),
        ),
        Example(
            "online_frozen_lake",
            "Online, one transition at a time",
            "A centred estimator is updated with every step of Gymnasium's loop. Value ± std of "
            "each state ends beside the exact one.",
            arguments="800000 PLOT",
        ),
        Example(
            "robot_stream",
            "A stream that breaks off",
            "A robot's radio fails in the middle of the day; the estimate is saved and resumed. "
            "It has the same bits as one that learned from everything in one pass.",
            arguments="",
            no_picture="its result is that two files are equal",
        ),
    ),
    "Trained policies": (
        Example(
            "trained_policy",
            "PPO by least squares",
            "PPO learns CartPole and Pendulum briefly; the spread of its returns is estimated, "
            "with its most probable actions and with drawn ones. Roll-outs from visited places "
            "are the truth; without its options the example trains longer.",
            arguments="--training 6144 --steps 20000 --places 8 --episodes 32 --plot PLOT",
            needs="sb3",
            modules=("stable_baselines3", "torch"),
        ),
        Example(
            "deep_policies",
            "PPO by a deep critic",
            "A critic of three networks says value and std for any observation of a policy. "
            "Where the environment can start from a place, roll-outs from there stand beside it.",
            arguments="CartPole-v1 Pendulum-v1 --plot PLOT",
            needs="sb3",
            modules=("stable_baselines3", "torch"),
            no_picture="it trains and fits for several minutes; `--plot` draws one",
            takes="several minutes",
        ),
        Example(
            "deep_contours",
            "A deep critic beside the exact answer",
            "A linear-Gaussian world, in which the std of the return is known for every state. "
            "Contours of the exact and of the learned std, from 200,000 transitions.",
            arguments="200000 PLOT",
            needs="deep",
            modules=("torch",),
        ),
        Example(
            "ppo_with_spread",
            "A variance head in a PPO of one file",
            "Three parts of `retvar.deep` in a single-file PPO: targets, a head, a loss. Value "
            "± std of the start during the training, and fresh returns at its end.",
            arguments="--steps 40000 --plot PLOT",
            needs="deep",
            modules=("torch",),
        ),
    ),
    "Models and risk": (
        Example(
            "calmer_way",
            "What a calmer way costs",
            "A delivery along a windy cliff: `frontier` finds ways for several penalties on the "
            "variance. The calmest costs 9% more on average and varies 45% less.",
            arguments="20000 PLOT",
        ),
        Example(
            "steady_hand",
            "How firmly a controller should correct",
            "A camera, gusts and a motor: mean and spread of the return are closed forms of the "
            "gain. A firmer gain than the best costs a little and strays less.",
            arguments="20000 PLOT",
        ),
        Example(
            "risk_control",
            "Calm policies, learned",
            "An actor–critic learns policies with a penalty on the variance, from experience "
            "alone. What it reaches is compared with the best that exact gradients find, on a "
            "windy cliff and in four rooms.",
            arguments="4000 --seeds 1 --plot PLOT",
        ),
        Example(
            "paper_domains",
            "The paper's MDPs, solved",
            "Value ± std of every state of the chain, the complex MDP (three questions) and the "
            "random walk. Each is compared with 20,000 sampled returns from every state.",
        ),
    ),
    "Methods": (
        Example(
            "value_error",
            "Errors of the value function",
            "How a wrong value function biases each method, exactly: direct upwards, VTD "
            "downwards, centred not at all. The figure of the README.",
        ),
        Example(
            "which_method",
            "Which method when",
            "Direct, VTD and centred on many small MDPs, each with its best steps. The study "
            "behind [which method](which-method.md).",
            made_by="make study",
            figure="docs/figures/which_method_exact.png",
            takes="16 minutes",
        ),
        Example(
            "readings",
            "Readings of the paper",
            "Two passages of the paper can be read in several ways. Each reading is computed in "
            "plain NumPy and compared with the printed Table 1.",
            arguments="",
            no_picture="it prints two tables",
        ),
    ),
}
ALL = {example.name: example for examples in SECTIONS.values() for example in examples}
HEAD = """# Gallery

Every script of `examples/`, with the picture that it draws; run them in the root of a clone. Times
are of one core, compilation included.
"""


def shrink(source: Path, target: Path) -> None:
    """Write a picture with fewer pixels and colours."""
    from PIL import Image

    with Image.open(source) as image:
        small = image.convert("RGB")
        if small.width > WIDTH:
            height = round(small.height * WIDTH / small.width)
            small = small.resize((WIDTH, height), Image.Resampling.LANCZOS)
        small = small.quantize(COLOURS, dither=Image.Dither.NONE)
        target.parent.mkdir(parents=True, exist_ok=True)
        small.save(target, optimize=True)


def run(example: Example) -> float:
    """Run an example in an empty folder, and keep its picture; processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        arguments = example.arguments.replace(PLOT, f"{example.name}.png").split()
        subprocess.run(
            [sys.executable, EXAMPLES / f"{example.name}.py", *arguments], cwd=folder, check=True,
            env=os.environ | {"NUMBA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if not example.no_picture:
            shrink(Path(folder) / f"{example.name}.png", picture(example))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def picture(example: Example) -> Path:
    """Where its picture is."""
    return PICTURES / f"{example.name}.png"


def rounded(seconds: float) -> str:
    """A duration in round numbers: times differ from machine to machine."""
    if seconds < 57.5:
        return f"{max(5, 5 * round(seconds / 5))} s"
    half = max(2, round(seconds / 30))
    return f"{half / 2:g} minute{'s' if half > 2 else ''}"


def card(example: Example, seconds: float | None) -> str:
    """The part of the page about an example."""
    takes = example.takes or (rounded(seconds) if seconds is not None else "")
    facts = [f"No picture: {example.no_picture}." if example.no_picture else ""]
    needs = [f"extra `{example.needs}`"] if example.needs else []
    facts += [f"*({', '.join([*filter(None, [takes]), *needs])})*"]
    file = f"figures/gallery/{example.name}.png"
    picture = f"```{{image}} {file}\n:alt: {example.title}\n:width: 420\n```"
    parts = ["" if example.no_picture else picture, " ".join(filter(None, [example.text, *facts]))]
    return "\n\n".join(filter(None, [f"### {example.title}", *parts, f"    {example.command()}\n"]))


def page(times: dict[str, float]) -> str:
    """The gallery, from the recorded processor times."""
    parts = [HEAD]
    for title, examples in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [card(example, times.get(example.name)) for example in examples]
    return "\n".join(parts)


def recorded() -> dict[str, float]:
    """Processor times of the last runs."""
    return json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}


def main(*arguments: str) -> int:
    """Run examples, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="examples to run [default: all]")
    parser.add_argument("--page", action="store_true", help="run none, only write the page")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(ALL))
    if unknown:
        parser.error(f"no example is called {', '.join(unknown)}")
    times = recorded()
    for name in [] if options.page else options.names or list(ALL):
        example = ALL[name]
        if example.made_by and (ROOT / example.figure).exists():
            shrink(ROOT / example.figure, picture(example))
        elif example.can_run():
            times[name] = round(run(example), 1)
            PICTURES.mkdir(parents=True, exist_ok=True)
            TIMES.write_text(json.dumps(dict(sorted(times.items())), indent=1) + "\n")
            print(f"{name}: {times[name]:.0f} s")
        else:
            print(f"{name}: not run; its last result is kept")
    PAGE.write_text(page(times), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
