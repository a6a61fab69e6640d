"""The command for unknown MDPs: estimate, from environments and logs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.at import answers, at_options, refuse_unknown
from retvar.cli.base import (
    DISAGREES,
    ESTIMAND,
    JSON,
    OPTION,
    PATH,
    print_note,
    print_result,
    split_commas,
    to_json,
)
from retvar.cli.deep import deep_options, finish, prepare_any, refuse_beside_deep, saved_line
from retvar.cli.live import Watch, live_options, refuse_beside_live, watching
from retvar.cli.sources import (
    COLUMNS,
    STEPS,
    acting_options,
    open_source,
    option_names,
    refuse_options,
    with_options,
)
from retvar.errors import InputError, RetvarError
from retvar.estimation.folder import (
    DATA,
    ESTIMATOR,
    FORMATS,
    estimator_file,
    open_folder,
    write_data,
    write_report,
)
from retvar.files import kind_of
from retvar.format import natural_key
from retvar.networks import DEFAULT, NETWORKS
from retvar.signals import NOTHING, Interrupted, Stop, current

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.answers import Answer
    from retvar.estimation.estimate import Estimate

__all__ = ["estimate"]

SETTINGS = (
    "by",
    "gamma",
    "lam",
    "method",
    "order",
    "kappa",
    "estimand",
    "features",
    "bootstrap_samples",
    "level",
    "actions",
)
SOURCES = (
    "SOURCE is gymnasium:ID, minari:NAME, or a log: FILE.parquet, FILE.csv, or a pattern of them."
)
COLUMN_HELP = {
    "state": "Column of the state; several, separated by commas, form an observation or a label.",
    "action": "Column of the action, for --target-policy and --actions.",
    "cost": "Column of costs, in place of rewards: rewards are negated costs.",
    "terminated": "Column that marks the end of an episode; 'none' if episodes never end.",
    "truncated": "Column that marks an episode that was cut off before its end.",
    "entity": "Column of the patient, user or device; rows of several may be mixed.",
    "time": "Column that orders the rows of an entity: numbers, dates or times.",
    "episode": "Column that tells the episodes of an entity apart.",
    "behaviour": "Column of the action's probability under the behaviour policy.",
    "target": "Column of the action's probability under the target policy.",
    "rho": "Column of the importance ratio, instead of the two probabilities.",
}


def _columns(command: Any) -> Any:
    """Add an option for each column of a log."""
    for name in reversed(COLUMNS):
        text = COLUMN_HELP.get(name, f"Column of the {name.replace('_', ' ')}.")
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, metavar="COL", help=text)(command)
    return command


@click.command(epilog=SOURCES)
@click.argument("source")
@click.option("--gamma", type=float, help="Discount γ; required unless it is a column.")
@click.option("--lam", type=float, help="λ of the return [default: 1].")
@acting_options
@click.option(
    "--steps", type=click.IntRange(1), help=f"Number of transitions to take [default: {STEPS:,}]."
)
@click.option(
    "--episodes", type=click.IntRange(1), help="Number of episodes to take, instead of --steps."
)
@OPTION
@_columns
@click.option(
    "--target-policy", metavar="POLICY",
    help="Target policy, instead of --target: FILE.npy (probabilities of actions by state, or "
    "actions), FILE.csv, .parquet or .json (state, action, probability), or MODULE:FUNCTION.",
)  # fmt: skip
@click.option("--stream", hidden=True)
@click.option(
    "--duplicates", type=click.Choice(["drop", "keep"]),
    help="Equal rows of one time, which are counted [default: drop].",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Go on if more than half of the rows are left out.")
@click.option("--states", metavar="N", help="Number of states; 'labels' if numbers are only names.")
@click.option("--gamma-column", metavar="COL", help="Column of γ, instead of --gamma.")
@click.option("--lam-column", metavar="COL", help="Column of λ, instead of --lam.")
@click.option(
    "--on-error", type=click.Choice(["skip", "raise"]),
    help="Skip and count bad rows of a log, or stop at the first [default: skip].",
)  # fmt: skip
@click.option("--grid", metavar="ROWSxCOLS", help="Draw the states as a map of this size.")
@click.option(
    "--by", type=click.Choice(["least_squares", "td"]),
    help="Least squares, or TD learning in one pass [default: least_squares; td with --method, "
    "--order, --kappa or --bootstrap-samples].",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(list(NETWORKS)), default=DEFAULT,
    show_default=True, help="Method that learns the variance.",
)  # fmt: skip
@click.option(
    "--order", type=int, default=2, show_default=True,
    help="Highest moment: 3 gives the skewness, 4 also the excess kurtosis, with td.",
)  # fmt: skip
@click.option("--kappa", type=float, help="Trace decay [default: a fifth of the horizon].")
@ESTIMAND
@click.option(
    "--features",
    help="Features of observations: tiles, fourier or polynomial [default: tiles]; deep: neural "
    "networks, which need the extra deep.",
)
@deep_options
@click.option(
    "--bootstrap-samples", type=click.IntRange(0),
    help="Number of bootstrap samples for the intervals of td; 0 for none [default: 100].",
)  # fmt: skip
@click.option(
    "--actions", is_flag=True,
    help="Estimate each action of each state: of taking it, then doing as the policy does.",
)  # fmt: skip
@click.option("--level", type=float, default=0.9, show_default=True, help="Level of the intervals.")
@click.option(
    "--seed", type=click.IntRange(0), help="Random seed [default: 0; with --resume a new one]."
)
@click.option("--resume", type=PATH, help="Folder of an earlier estimate, or its estimator.")
@click.option(
    "--check",
    is_flag=True,
    help="Compare with fresh returns of the environment; exit status 3 if they disagree.",
)
@click.option(
    "--out", type=PATH, default="estimate", show_default=True,
    help=f"Folder for the report, figures, {DATA} and {ESTIMATOR}; created if missing.",
)  # fmt: skip
@click.option(
    "--cluster",
    help="Sum the files of a log on Dask workers: local, or the address of a scheduler such as "
    "tcp://host:8786.",
)
@click.option("--workers", type=click.IntRange(1), help="Number of processes with --cluster local.")
@click.option(
    "--follow", is_flag=True,
    help="Go on when lines are added to a .csv file, or files to a folder, until Ctrl-C.",
)  # fmt: skip
@click.option(
    "--every", type=float, help="Seconds between looks with --follow [default: 5].",
)  # fmt: skip
@click.option("--log", type=PATH, help="Also write the experience to a .parquet file.")
@click.option(
    "--formats", default="png", show_default=True,
    help="File formats of figures: png,svg,pdf; or none.",
)  # fmt: skip
@click.option(
    "--rows", type=click.IntRange(1), default=20, show_default=True, help="Rows of the table."
)
@at_options
@live_options
@JSON
def estimate(source: str, **args: Any) -> None:
    """Estimate the value and the spread of returns in every state of SOURCE, with intervals.

    Prints a table and writes a report (index.html), figures, estimate.csv, estimate.nc (netCDF) and
    estimator.safetensors, from which another run continues with --resume. With --follow it is
    interrupted by Ctrl-C: everything is saved, and the exit status is 130.
    """
    stop = current()
    formats = _formats(args["formats"])
    _refuse_beside_follow(args)
    _refuse_beside_actions(args)
    refuse_beside_deep(args)
    refuse_beside_live(args)
    refuse_options(source, args)
    with option_names(file="--resume", resume="--resume"):
        from retvar.estimation.checks import check
        from retvar.estimation.distributed import refuse_cluster
        from retvar.experience import recorded

        settings = _settings(args)
        settings["by"] = refuse_cluster(args["cluster"], args["workers"], settings.get("by"))
        if args["resume"] is not None:
            del settings["by"]
            _refuse_beside_actions(args)  # those of the saved estimator
        experience = open_source(source, args, args["seed"], stop)
        with option_names(state="--at"):
            refuse_unknown(experience, args)
        kept = _Kept(args)
        with (
            stop.graceful(kept.save, kept.line),
            _folder(args["out"], stop) as out,
            contextlib.ExitStack() as stack,
        ):
            if args["log"] is not None:
                with option_names(path="--log"):
                    experience = recorded(experience, args["log"])
            found = prepare_any(experience, settings, args)
            if args["follow"] and args["resume"] is not None:
                _refuse_twice(found, args["resume"])
            kept.found, kept.out = found, out
            kept.separate = not _may_replace(out, args["resume"])
            watch = stack.enter_context(watching(found, args))
            if args["follow"]:
                failure = _follow(found, stop, out, formats, args, watch)
            elif args["cluster"] is not None:
                failure = _learn_on_cluster(found, stop, args, watch)
            else:
                acting = source.startswith("gymnasium:")
                failure = _learn(found, stop, watch, acting=acting)
            failure = finish(found, failure, source, args, stop, watch)
            kept.separate = failure is not None and kept.separate
            saved = kept.path = _save(found, out, separate=kept.separate)
            checked = None
            if args["check"] and failure is None:
                watch.say("checking on fresh returns")
                try:
                    checked = check(found, open_source(source, args, args["seed"] + 1, stop))
                except (RetvarError, Interrupted) as error:
                    failure = error
            asked: list[Answer] = []
            if args["at"] and failure is None:
                try:
                    with option_names(state="--at"):
                        asked = answers(found, source, args, stop)
                except (RetvarError, Interrupted) as error:
                    failure = error
            drawn: list[Path] = []
            if not stop.number and saved.name == ESTIMATOR:
                drawn = _draw(found, checked, asked, out, formats)
            written = [*drawn, saved.with_name(saved.name.replace(ESTIMATOR, DATA)), saved]
            _print(found, checked, asked, written, args)
            stop.check()
            watch.finish(out, checked, failure)
            if failure is not None:
                print_note(saved_line(saved, args))
                raise failure
    if checked is not None and checked.disagrees:
        sys.exit(DISAGREES)


def _refuse_beside_follow(args: dict[str, Any]) -> None:
    """Refuse options that a log that grows cannot have."""
    if args["every"] is not None:
        from retvar.arguments import seconds

        seconds("--every", args["every"])
        if not args["follow"]:
            raise InputError("--every", args["every"], "only with --follow")
    if args["follow"]:
        for name in ("cluster", "log", "time"):
            if args.get(name) is not None:
                remedy = "needs a log that ends; drop --follow"
                if name == "time":
                    remedy += ", or drop --time if rows arrive in order"
                raise InputError(f"--{name}", args[name], remedy)


def _refuse_beside_actions(args: dict[str, Any]) -> None:
    """Refuse options that estimates of actions cannot have."""
    if args["actions"]:
        for name, remedy in (("grid", "draws states"), ("cluster", "sums transitions of states")):
            if args[name] is not None:
                raise InputError(f"--{name}", args[name], f"{remedy}, not actions; leave it out")


def _refuse_twice(found: Estimate, resume: Path) -> None:
    """Refuse to follow a log again from its beginning with an estimator that has read it."""
    from retvar.estimation.provenance import Provenance

    before = found.estimator.notes.get("estimate", {}).get("began", {})
    if before.get("name") == Provenance.of(found.experience).name:
        remedy = (
            "has read this log: its rows would count twice; follow it without --resume: it is read "
            "from its first row again, and the answer is that of all its rows"
        )
        raise InputError("--resume", resume, remedy)


def _follow(
    found: Estimate,
    stop: Stop,
    out: Path,
    formats: tuple[str, ...],
    args: dict[str, Any],
    watch: Watch,
) -> BaseException | None:
    """Save, draw and print whenever the log has grown, until a signal; return what ended it."""
    from retvar.estimation.following import updates

    try:
        for k, _ in enumerate(updates(found)):
            if stop.number:  # the caller saves and prints the last one
                break
            watch.advance(found.experience.counts.transitions)
            saved = _save(found, out)
            written = [*_draw(found, None, [], out, formats), saved.with_name(DATA), saved]
            _print(found, None, [], [] if k else written, args)  # the files are the same again
        found.refuse_nothing()
    except (RetvarError, Interrupted) as error:
        if getattr(error, "estimate", None) is None:
            raise Interrupted(stop.number) if stop.number else error from None
        return error
    return Interrupted(stop.number) if stop.number else None


def _learn_on_cluster(
    found: Estimate, stop: Stop, args: dict[str, Any], watch: Watch
) -> BaseException | None:
    """Learn on workers; return the error that ended it early, if something was learned."""
    from retvar.estimation.actions import refuse_cluster_of_actions
    from retvar.estimation.distributed import learn_on_cluster

    refuse_cluster_of_actions(found.experience, args["cluster"])

    def learn(advance: Callable[[int], None]) -> None:
        learn_on_cluster(found, args["cluster"], workers=args["workers"], progress=advance)

    return _learn(found, stop, watch, acting=False, learn=learn)


def _learn(
    found: Estimate,
    stop: Stop,
    watch: Watch,
    *,
    acting: bool,
    learn: Callable[..., None] | None = None,
) -> BaseException | None:
    """Learn from the whole stream; return the error that ended it early, if something was learned.

    An environment is stopped between steps, so that all its transitions are used; stopping between
    chunks as well would lose the last transition, which waits for the next one.
    """
    from retvar.progress import Display

    check = (lambda: None) if acting else stop.check
    try:
        with Display(sys.stderr, check, unit="transitions") as progress:
            progress.start(found.experience.length)
            (learn or found.learn)(watch.beside(progress.advance))
    except (RetvarError, Interrupted) as error:
        lost = isinstance(error, InputError) and error.field == "rows"  # most rows are left out
        if getattr(error, "estimate", None) is None or lost:
            raise Interrupted(stop.number) if stop.number else error from None
        return error
    return None


class _Kept:
    """What there is of an estimate when a signal ends the process."""

    def __init__(self, args: dict[str, Any]) -> None:
        self.args = args
        self.found: Estimate | None = None
        self.out, self.separate = Path(), False
        self.path: Path | None = None  # of the estimator, once it is saved

    def save(self) -> None:
        """Save the estimator of a process that is about to be ended, such as in a long reset."""
        from retvar.experience.recording import finish_recordings

        if self.found is None or self.path is not None:
            return
        while self.found.updating:  # the caller does not wait for ever
            time.sleep(0.01)
        if self.found.estimator.steps:
            self.path = _save_estimator(self.found, self.out, self.separate)
            finish_recordings()
            write_data(self.found.data, self.path)

    def line(self) -> str:
        """Where the estimator is, in one line."""
        return NOTHING if self.path is None else saved_line(self.path, self.args)


def _settings(args: dict[str, Any]) -> dict[str, Any]:
    """Settings of the estimator; those of the saved one, with a new seed, for ``--resume``."""
    if args["resume"] is None:
        args["seed"] = args["seed"] or 0
        settings = {name: args[name] for name in (*SETTINGS, "seed")}
        return settings | {"estimand": args["estimand"].replace("-", "_")}
    from retvar.estimation.actions import has_actions
    from retvar.estimation.saved_estimators import load

    source = click.get_current_context().get_parameter_source
    for name in SETTINGS:
        if source(name) is click.core.ParameterSource.COMMANDLINE:
            field = f"--{name.replace('_', '-')}"
            raise InputError(field, args[name], "comes from the saved estimator; leave it out")
    saved = load(args["resume"])
    gamma = saved.description.gamma
    args["gamma"] = float(gamma) if isinstance(gamma, float | int) else None  # for greedy
    args["actions"] = has_actions(saved)
    if args["seed"] is None:  # so that the experience is not the same again
        args["seed"] = saved.steps
    return {"resume": args["resume"]}


def _formats(text: str) -> tuple[str, ...]:
    formats = split_commas(text) or ()
    if formats == ("none",):
        return ()
    for each in formats:
        if each not in FORMATS:
            raise InputError("--formats", each, f"must be some of {', '.join(FORMATS)}, or none")
    return formats


@contextlib.contextmanager
def _folder(out: Path, stop: Stop) -> Iterator[Path]:
    """Create the output folder; remove it again if nothing was written to it."""
    existed = kind_of("--out", out) == "folder"
    open_folder("--out", out)

    def remove_if_empty() -> None:
        with contextlib.suppress(OSError):
            if not existed and not any(out.iterdir()):
                out.rmdir()

    stop.leaving.append(remove_if_empty)
    try:
        yield out
    finally:
        remove_if_empty()


def _may_replace(out: Path, resume: Path | None) -> bool:
    """Whether an unfinished run may replace the estimator in `out`: if it continued from it."""
    path = out / ESTIMATOR
    if not kind_of("--out", path):
        return True
    return resume is not None and path.resolve() == estimator_file(Path(resume)).resolve()


def _save(
    found: Estimate, out: Path, data: xarray.Dataset | None = None, separate: bool = False
) -> Path:
    """Write the estimator and the estimates and return the path of the estimator.

    With `separate`, files of an earlier run are not replaced: names begin with ``unfinished-``.
    """
    path = _save_estimator(found, out, separate)  # first, since estimates may fail
    write_data(found.data if data is None else data, path)
    return path


def _save_estimator(found: Estimate, out: Path, separate: bool) -> Path:
    path = out / (("unfinished-" if separate else "") + ESTIMATOR)
    found.save(path)
    return path


def _draw(
    found: Estimate, checked: Any, asked: list[Answer], out: Path, formats: tuple[str, ...]
) -> list[Path]:
    """Write figures, table and report; save the estimates again if they have been checked."""
    data = found.data if checked is None else checked.data
    if checked is not None:
        _save(found, out, data)
    return write_report(found, out, formats, data, checked, asked)


def _print(
    found: Estimate, checked: Any, asked: list[Answer], written: list[Path], args: dict[str, Any]
) -> None:
    apart = args["as_json"] or not sys.stdout.isatty()  # on a terminal the summary has them
    for warning in found.warnings if apart else ():
        print_note(f"WARNING: {with_options(warning)}")
    if args["as_json"]:
        at = {"at": [each.to_dict() for each in asked]} if asked else {}
        print_result(to_json(_to_dict(found, checked) | at))
        return
    lines = found.summary(args["rows"]).splitlines()
    warned = [x.startswith("WARNING") for x in lines]
    print_result("\n".join(
        with_options(x) if w else x for x, w in zip(lines, warned, strict=True) if not (w and apart)
    ))  # fmt: skip
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
    columns = {
        str(name): data[name].values.tolist()
        for name in data.data_vars
        if data[name].dims == (dim,)
    }
    if dim == "region":
        columns["centre"] = data["centre"].values.tolist()
    counts = found.experience.counts
    result = {
        **data.attrs,
        dim: [str(x) for x in data["label" if dim == "state" else dim].values],
        "warnings": [with_options(each) for each in found.warnings],
        "duplicates": counts.duplicates,
        "ties": counts.ties,
        "rejected_by_reason": dict(counts.rejected),
        "unmarked_ends_by_reason": dict(counts.unmarked_ends),
        **columns,
    }
    result["self_check"] = found.self_check.to_dict()
    if checked is not None:
        result["check"] = checked.verdicts.to_dict()
    return result
