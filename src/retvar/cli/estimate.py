"""The command for unknown MDPs: estimate, from environments and logs."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli import base
from retvar.cli.base import COUNT, ONE, PATH, print_note, print_result
from retvar.cli.sources import ACTING, STEPS, acting, open_source, refuse_misplaced
from retvar.estimation.files import (
    DATA,
    ESTIMATOR,
    FORMATS,
    data_file,
    estimator_file,
    open_folder,
    write_data,
    write_report,
)
from retvar.support.errors import InputError, RetvarError
from retvar.support.files import kind_of
from retvar.support.format import natural_key
from retvar.support.progress import Display

if TYPE_CHECKING:
    from retvar.estimation.answers import Answer
    from retvar.estimation.estimate import Estimate
    from retvar.experience import Experience

SETTINGS = (
    "by", "gamma", "lam", "estimand", "features", "bootstrap_samples", "level", "actions", "resume",
)  # fmt: skip
ROLLOUTS = 300
SOURCES = (
    "SOURCE is gymnasium:ID, minari:NAME, or a log: FILE.parquet, FILE.csv, or a pattern of them."
)
SKIP, DROP = click.Choice(["skip", "raise"]), click.Choice(["drop", "keep"])
BY = click.Choice(["least_squares", "td"])
OPTIONS: base.Options = {
    "gamma": (float, "Discount γ; required unless it is a column."),
    "lam": (float, "λ of the return [default: 1]."),
    "steps": (ONE, f"Transitions to take [default: {STEPS:,}]."),
    "episodes": (ONE, "Episodes to take, instead of --steps."),
    "state": ("COL", "Column of the state; several, with commas, form an observation or a label."),
    "action": ("COL", "Column of the action, for --target-policy and --actions."),
    "reward": ("COL", "Column of the reward; several, with commas."),
    "cost": ("COL", "Column of costs, in place of rewards."),
    "terminated": ("COL", "Column that marks the end of an episode; 'none' if none ever ends."),
    "entity": ("COL", "Column of the patient, user or device; rows of several may be mixed."),
    "time": ("COL", "Column that orders the rows of an entity: numbers, dates or times."),
    "episode": ("COL", "Column that tells the episodes of an entity apart."),
    "behaviour": ("COL", "Column of the action's probability under the behaviour policy."),
    "target_policy": (None, "Target policy: FILE.npy, .csv, .parquet, or MODULE:FUNCTION."),
    "decimal": (None, "Decimal separator of numbers, such as ','."),
    "on_error": (SKIP, "Leave out rows with text in place of a number, or stop at the first."),
    "by": (BY, "Least squares, or TD learning along the stream [default: what the options imply]."),
    "features": (
        None,
        "Of observations: tiles, fourier, polynomial; or deep: networks in the mixture.",
    ),
    "actions": (bool, "Estimate each action: of taking it, then doing as the policy does."),
    "level": (float, "Level of the intervals."),
    "check": (bool, "Compare with fresh returns of the environment; exit status 3 if they differ."),
    "resume": (PATH, "Folder of an earlier estimate, or its estimator."),
    "out": (PATH, f"Folder for the report, figures, {DATA} and {ESTIMATOR}; made if missing."),
    "log": (PATH, "Also write the experience to a .parquet file."),
    "follow": (bool, "Estimate again when a .csv file or a folder has grown, until Ctrl-C."),
    "cluster": (None, "Sum the files of a log on Dask workers: local, or tcp://host:8786."),
    "policy": ACTING["policy"],
    "at": (
        ["STATE"],
        "Also answer for this label, number, observation (0.1,2; all of a .npy) or STATE,ACTION.",
    ),
    **base.JSON,
}
RARE: base.Options = {
    "next_state": ("COL", "Column of the next state."),
    "truncated": ("COL", "Column that marks an episode that was cut off before its end."),
    "target": ("COL", "Column of the action's probability under the target policy."),
    "rho": ("COL", "Column of the importance ratio, instead of the two probabilities."),
    "gamma_column": ("COL", "Column of γ, instead of --gamma."),
    "lam_column": ("COL", "Column of λ, instead of --lam."),
    "states": (None, "Number of states; 'labels' if numbers are only names."),
    "thousands": (None, "Thousands separator of numbers, such as '.'."),
    "day_first": (bool, "Dates such as 31/01/2026 begin with the day."),
    "encoding": (None, "Encoding of a CSV file [default: UTF-8]."),
    "memory": (None, "Limit of memory, such as 2GB [default: a quarter]."),
    "duplicates": (DROP, "Equal rows of one time, which are counted [default: drop]."),
    "force": (bool, "Go on if more than half of the rows are left out."),
    "grid": (None, "Draw the states as a map of this size, ROWSxCOLS."),
    "bootstrap_samples": (COUNT, "For the intervals of td; 0: none [default: 100]."),
    "seed": (COUNT, "Random seed [default: 0; with --resume a new one]."),
    "rollouts": (COUNT, "Roll-outs from each --at, if there is an environment [default: 300]."),
    "every": (float, "Seconds between looks with --follow [default: 5]."),
    "workers": (ONE, "Number of processes with --cluster local."),
    "formats": (None, "File formats of figures: png,svg,pdf; or none."),
    "rows": (ONE, "Rows of the table."),
    "estimand": base.QUESTION["estimand"],
    **{name: each for name, each in ACTING.items() if name != "policy"},
}  # that --help-all shows


def _help_all(ctx: click.Context, _: Any, wanted: bool) -> None:
    if wanted:
        for option in ctx.command.params:
            if isinstance(option, click.Option):
                option.hidden = False
        click.echo(ctx.get_help())
        ctx.exit()


@click.command(epilog=SOURCES)
@click.argument("source")
@base.options(OPTIONS, level=0.9, out="estimate")
@base.options(RARE, hidden=True, formats="png", rows=20)
@click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
    help="Show all options.",
)  # fmt: skip
def estimate(source: str, **args: Any) -> None:
    """Estimate the value and the spread of returns in every state of SOURCE, with intervals.

    Prints a table and writes a report (index.html), figures, estimate.csv, estimate.nc (netCDF) and
    estimator.safetensors, from which another run continues with --resume. After Ctrl-C all that an
    environment gave is saved, and the exit status is 130.
    """
    formats = tuple(x for x in base.split_commas(args["formats"]) or () if x != "none")
    if unknown := [each for each in formats if each not in FORMATS]:
        raise InputError("formats", unknown[0], f"must be some of {', '.join(FORMATS)}, or none")
    _refuse(source, args)
    settings = _settings(args)
    experience = open_source(source, args, args["seed"])
    _refuse_unknown(experience, args)
    with _folder(args["out"]) as out:
        if experience.rewards:
            return _several(experience, settings, out, args)
        if args["follow"]:
            from retvar.estimation.estimate import follow

            for found in follow(experience, **settings):  # until Ctrl-C
                _report(found, source, _save(found, out), formats, args)
            return None
        if args["log"] is not None:
            from retvar.experience.stream import parquet_path

            parquet_path(args["log"])
        found, failure = _estimated(experience, settings, args)
        if args["log"] is not None:
            experience.save(args["log"])  # what was read, also if it failed
        saved = _save(found, out, args["resume"], unfinished=failure is not None)
        if failure is None:
            failure = _report(found, source, saved, formats, args)
        else:
            _print(found, None, [], [data_file(saved), saved], args)
    if failure is not None:
        print_note(f"The estimator is saved: {saved}")
        raise failure
    return None


def _refuse(source: str, args: dict[str, Any]) -> None:
    """Refuse what is missing or does not go together, before anything heavy is imported."""
    if args["gamma"] is None and args["gamma_column"] is None and args["resume"] is None:
        raise InputError("gamma", "missing", "give the discount per step, such as --gamma 0.99")
    refuse_misplaced(source, args)
    beside: dict[str, tuple[tuple[str, ...], str]] = {
        "follow": (("cluster", "log", "resume"), "needs a log that ends; drop --follow"),
        "actions": (("grid", "cluster", "rollouts"), "is for states, not actions; leave it out"),
    }
    for flag, (names, remedy) in beside.items():
        for name in names:
            if args[flag] and args[name]:
                raise InputError(name, args[name], remedy)
    if args["every"] is not None and not args["follow"]:
        raise InputError("every", args["every"], "only with --follow")


def _settings(args: dict[str, Any]) -> dict[str, Any]:
    """Settings of the estimator; of a saved one, γ is read, and a seed for new experience."""
    settings = {name: args[name] for name in SETTINGS}
    settings["estimand"] = args["estimand"].replace("-", "_")
    if args["resume"] is not None:
        from retvar.estimation.files import load_estimate

        found = load_estimate(args["resume"])
        gamma = found.estimator.description.gamma
        args["gamma"] = float(gamma) if isinstance(gamma, float | int) else None  # for greedy
        args["actions"] = found.experience.pairs
        args["seed"] = found.estimator.steps if args["seed"] is None else args["seed"]
    args["seed"] = args["seed"] or 0
    return settings | {"seed": args["seed"]}


def _refuse_unknown(experience: Experience, args: dict[str, Any]) -> None:
    """Refuse a wrong ``--at`` before anything is learned, where states are known; a log is read."""
    from retvar.estimation.answers import find_state

    vector, known = experience.width is not None, 0
    if vector:
        args["at"] = [place for text in args["at"] for place in _places(text)]
    asked = () if args["actions"] else args["at"]  # pairs are known once they have been read
    later = experience.rewards or any(args[name] for name in ("resume", "follow", "cluster"))
    if asked and experience.is_log and not (vector or later):
        for rows in experience.moves().chunks():
            known = max(known, 1 + int(max(rows["state"].max(), rows["next_state"].max())))
    for text in asked:
        if known or vector or experience.fixed_states:
            find_state(experience, text, known)
        elif experience.labels is None and not text.strip().isdecimal():  # how many is not known
            raise InputError("at", text, "must be the number of a state, 0 or more")


def _places(text: str) -> list[str]:
    """An observation, or all of a NumPy file of them."""
    import numpy as np

    if not text.endswith(".npy"):
        return [text]
    try:
        return [",".join(map(repr, row)) for row in np.load(text, allow_pickle=False).tolist()]
    except (OSError, ValueError, TypeError):
        raise InputError("at", text, "must be a NumPy file of rows of numbers") from None


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Create the output folder; remove it again if nothing was written to it."""
    existed = kind_of("out", out) == "folder"
    open_folder("out", out)
    try:
        yield out
    finally:
        with contextlib.suppress(OSError):
            if not existed and not any(out.iterdir()):
                out.rmdir()


def _several(
    experience: Experience, settings: dict[str, Any], out: Path, args: dict[str, Any]
) -> None:
    """Save the estimates of several rewards; print values, spreads and correlations."""
    from retvar.estimation.estimate import estimate
    from retvar.estimation.settings import refuse

    alone = {name: args[name] or None for name in ("at", "check", "follow", "cluster", "log")}
    refuse("is for one reward; leave it out", alone)
    found: Any = estimate(experience, **settings)
    found.save(out)
    if not _printed_text(found, args):
        told = {str(name): x.values.tolist() for name, x in found.returns.data.variables.items()}
        each = {name: _to_dict(found[name], None) for name in found.names}
        print_result(base.to_json(told | {"warnings": found.warnings, "of": each}))
    else:
        print_result(f"\nwritten: {out}")


def _estimated(
    experience: Experience, settings: dict[str, Any], args: dict[str, Any]
) -> tuple[Estimate, BaseException | None]:
    """The estimate, and the error that ended it early, if there is something to save."""
    from retvar.estimation.estimate import estimate

    try:
        with Display(sys.stderr, unit="transitions") as progress:
            progress.start(experience.length)
            return estimate(
                experience, **settings, progress=progress.advance, cluster=args["cluster"],
                workers=args["workers"],
            ), None  # fmt: skip
    except (RetvarError, KeyboardInterrupt) as error:
        if getattr(error, "estimate", None) is None:
            raise
        return error.estimate, error  # type: ignore[union-attr]


def _save(found: Estimate, out: Path, resume: Path | None = None, unfinished: bool = False) -> Path:
    """Write the estimator and the estimates.

    Those of a run that failed replace no others, unless it continued from them.
    """
    path = out / ESTIMATOR
    earlier = path.exists() and not (resume and path.samefile(estimator_file(resume)))
    path = out / f"unfinished-{ESTIMATOR}" if unfinished and earlier else path
    found.save(path)
    if unfinished:
        print_note(f"The estimator is saved: {path}; Ctrl-C leaves the estimates out")
    write_data(found.data, path)
    return path


def _report(
    found: Estimate, source: str, saved: Path, formats: Any, args: dict[str, Any]
) -> BaseException | None:
    """Check, answer, draw and print; return the error of an environment that fails now."""
    from retvar.estimation.check import check

    checked, asked, failure = None, [], None
    try:
        if args["check"]:
            checked = check(found, open_source(source, args, args["seed"] + 1))
            write_data(checked.data, saved)
        asked = [_answer(found, text, source, args) for text in args["at"]]
    except (RetvarError, KeyboardInterrupt) as error:
        failure = error
    data = found.data if checked is None else checked.data
    drawn = write_report(found, saved.parent, formats, data, checked, asked)
    _print(found, checked, asked, [*drawn, saved.with_name(DATA), saved], args)
    if checked is not None and checked.disagrees:
        sys.exit(base.DISAGREES)
    return failure


def _answer(found: Estimate, text: str, source: str, args: dict[str, Any]) -> Answer:
    """The answer for an ``--at``, with roll-outs or a word on why an environment gives none."""
    import retvar as rv
    from retvar.estimation.rollouts import Observed

    answer = found.at(text)
    answer = replace(answer, beside=_beside(found, answer))
    episodes = ROLLOUTS if args["rollouts"] is None else args["rollouts"]
    if not source.startswith("gymnasium:") or not episodes:
        return answer
    why = (
        "they do not begin with an action" if found.experience.pairs
        else "γ is not one number" if args["gamma"] is None
        else "they are of the return, λ = 1" if found.data.attrs["lam"] != 1.0
        else ""
    )  # fmt: skip
    how = {
        "gamma": args["gamma"], "start": Observed(answer.state), "episodes": episodes,
        "level": answer.level, "deterministic": args["deterministic"], "seed": args["seed"] + 2,
    }  # fmt: skip
    try:
        if not why:  # the estimate completes returns that are cut off
            sample = rv.rollouts(*acting(source, args, args["envs"]), value=found.value, **how)
            return replace(answer, rollouts=sample)
    except InputError as error:
        if error.field not in ("start", "value"):
            raise
        own = error.field == "start"  # after its semicolon a remedy is for Python
        why = error.remedy.partition(";")[0] if own else "the estimate does not know all their ends"
    return replace(answer, note="; ".join(filter(None, (answer.note, f"no roll-outs: {why}"))))


def _beside(found: Estimate, answer: Answer) -> dict[str, Any]:
    """The law of the return, and where its variance arises, of states that the rows tell of."""
    states = found.experience.width is None and not found.experience.pairs
    if not states or math.isnan(answer.std.estimate):
        return {}
    try:
        return {"law": found.law(answer.state), "why": found.attribution(answer.state)}
    except InputError:  # by TD, resumed without rows, or the off-policy return
        return {}


def _printed_text(found: Any, args: dict[str, Any]) -> bool:
    """Print warnings, and the summary unless JSON is asked for."""
    apart = args["json"] or not sys.stdout.isatty()  # on a terminal the summary has them
    for warning in found.warnings if apart else ():
        print_note(f"WARNING: {warning}")
    if not args["json"]:
        lines = base.in_options(found.summary(args["rows"])).splitlines()
        print_result("\n".join(x for x in lines if not (apart and x.startswith("WARNING"))))
    return not args["json"]


def _print(
    found: Estimate, checked: Any, asked: list[Answer], written: list[Path], args: dict[str, Any]
) -> None:
    if not _printed_text(found, args):
        at = {"at": [each.to_dict() for each in asked]} if asked else {}
        print_result(base.to_json(_to_dict(found, checked) | at))
        return
    if checked is not None:
        print_result("\nfresh returns:\n" + checked.summary())
    if asked:
        from retvar.estimation.answers import answers_table

        print_result("\n" + answers_table(asked))
    if written:
        print_result("\nwritten: " + "\n         ".join(map(str, written)))
    note = found.data.attrs.get("observed_note")
    if note and args["formats"] != "none":
        drawn = not written or any(path.stem == "calibration" for path in written)
        print_result(f"observed, calibration: {note if drawn else f'not drawn, since {note}'}")


def _to_dict(found: Estimate, checked: Any) -> dict[str, Any]:
    """Estimates of all states or regions, with settings and counts."""
    data = found.data if checked is None else checked.data
    dim = "state" if "state" in data.dims else "region"
    if dim == "state":
        labels = data["label"].values
        data = data.isel(state=sorted(range(len(labels)), key=lambda k: natural_key(labels[k])))
    own = [name for name in data.data_vars if data[name].dims[:1] == (dim,)]  # and centres
    counts, check = found.experience.counts, {} if checked is None else {"check": checked.to_dict()}
    return {
        **data.attrs,
        dim: [str(x) for x in data["label" if dim == "state" else dim].values],
        "warnings": found.warnings,
        "duplicates": counts.duplicates,
        "ties": counts.ties,
        "rejected_by_reason": dict(counts.rejected),
        "unmarked_ends_by_reason": dict(counts.unmarked_ends),
        **{str(name): data[name].values.tolist() for name in own},
        "self_check": found.self_check.to_dict(),
        **check,
    }
