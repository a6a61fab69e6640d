# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The lab: a marimo notebook. Functions are what the page shows as its Python; cells draw them."""

import marimo

app = marimo.App(width="full", app_title="retvar lab", css_file="lab.css")

with app.setup:
    import inspect
    from functools import lru_cache

    import marimo as mo
    import numpy as np
    import pandas as pd

    import retvar as rv
    from retvar.lab import charts, mdp_table, words
    from retvar.mdp import END
    from retvar.mdp.toml import toml_text
    from retvar.plots.style import picture
    from retvar.support.format import minus, number, plus_minus
    from retvar.support.html import escaped
    from retvar.td.learners import LEARNERS
    from retvar.td.networks import NETWORKS

    METHODS = {kind.method: kind for kind in LEARNERS.values()}
    STEP_SIZES = [float(f"{a:.3g}") for a in np.geomspace(0.001, 1.0, 31)]
    ERRORS = [round(-0.5 + k / 40, 3) for k in range(41)]
    SHARES = [round(k / 20, 2) for k in range(21)]
    OWN, DOMAINS = "your own MDP", ("chain", "complex-mdp", "random-walk", "windy-cliff")
    VIEWS = (
        "Two step sizes",
        "A wrong value",
        OWN.capitalize().replace("mdp", "MDP"),
        "A grid world",
        "Risk against return",
    )
    MOST_STATES = 6  # of MDPs whose exact curves come while one waits
    WORLDS = {
        "FrozenLake": ("FrozenLake-v1", {}),
        "FrozenLake, not slippery": ("FrozenLake-v1", {"is_slippery": False}),
        "FrozenLake, 8 × 8": ("FrozenLake-v1", {"map_name": "8x8"}),
        "CliffWalking": ("CliffWalking-v1", {}),
        "CliffWalking, slippery": ("CliffWalking-v1", {"is_slippery": True}),
    }


# ---------------------------------------------------------------- what cells share


@app.function(hide_code=True)
def page(controls, said, drawn, heading, rows, code):
    """Controls on the left; sentences, charts, a table and the Python on the right."""
    told = "\n\n".join(said)
    pictures = "".join(f"<div>{mo.as_html(each)}</div>" for each in drawn)
    table = pd.DataFrame(rows, columns=heading).set_index(heading[0])
    shown = mo.vstack(
        [
            mo.Html(f'<div class="rv-said">{mo.md(told)}</div>'),
            mo.Html(f'<div class="rv-charts">{pictures}</div>'),
            mo.plain(table),
            mo.accordion({"The Python that makes this": mo.md(f"```python\n{code}\n```")}),
        ]
    )
    settings = "".join(f"<div>{mo.as_html(each)}</div>" for each in controls)
    return mo.Html(
        f'<div class="rv-page"><div class="rv-controls">{settings}</div><div>{shown}</div></div>'
    )


@app.function(hide_code=True)
def python_of(function, made, *helpers, **settings):
    """The source of a function, the lines that make its arguments, and its call with settings."""
    sources = [inspect.getsource(each) for each in (*helpers, function)]
    source = "\n\n\n".join(text[text.index("def ") :].strip() for text in sources)
    names = "".join(f'    "{m}": rv.{kind.__name__},\n' for m, kind in METHODS.items())
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    first = next(iter(inspect.signature(function).parameters))
    call = f"found = {function.__name__}({first}, {given})\nprint(found)"
    head = f"import numpy as np\nimport retvar as rv\n\nMETHODS = {{\n{names}}}\n"
    return f"{head}\n\n{source}\n\n\n{made}\n{call}"


@app.function(hide_code=True)
def slider(label, value, options):
    """A slider that stops at these numbers; it tells when it is let go."""
    stops = sorted({value, *options})
    return mo.ui.slider(
        steps=stops, value=value, label=label, show_value=True, full_width=True, debounce=True
    )


@app.function(hide_code=True)
def discount(mdp, name):
    """A slider of γ or λ from the domain's own; a choice where that differs by state."""
    own = np.unique(mdp.lam if name == "λ" else mdp.edges.gamma[mdp.edges.next_state != END])
    if own.size == 1:
        return slider(name, float(own[0]), SHARES)
    return mo.ui.dropdown(
        {"the domain's": None, **{str(x): x for x in SHARES}}, value="the domain's", label=name
    )


@app.function(hide_code=True)
def problem(name, own, gamma=None, lam=None):
    """An MDP with its own γ and λ or with others, and the Python that makes it."""
    if name in WORLDS:
        env, options = WORLDS[name]
        given = {"gamma": 0.95 if gamma is None else gamma, **options}
        code = ", ".join([f'"{env}"', *(f"{key}={value!r}" for key, value in given.items())])
        return rv.MDP.from_gymnasium(env, **given), f"mdp = rv.MDP.from_gymnasium({code})"
    mdp, code = own if name == OWN else (rv.domains.find(name), f'rv.domains.find("{name}")')
    if gamma is not None and np.any(mdp.edges.gamma[mdp.edges.next_state != END] != gamma):
        mdp, code = mdp.replace(gamma=gamma), f"{code}.replace(gamma={gamma!r})"
    if lam is not None and np.any(mdp.lam != lam):
        mdp, code = mdp.replace(lam=lam), f"{code}.replace(lam={lam!r})"
    return mdp, f"mdp = {code}"


@app.function(hide_code=True)
def states_of(mdp):
    """Names of the states, with their numbers."""
    return {mdp.state_name(s): s for s in range(mdp.n_states)}


@app.function(hide_code=True)
def curve(learner, x, y, std=None):
    """A line of a chart, with a band of one standard deviation."""
    table = {"learner": learner, "x": x, "y": np.asarray(y, dtype=float).round(5)}
    band = {} if std is None else {"low": (y - std).round(5), "high": (y + std).round(5)}
    return pd.DataFrame(table | band)


@app.function(hide_code=True)
def drawing(figure):
    """A figure of retvar.plots."""
    return mo.Html(picture(figure, ".svg", 96).decode())


@app.function(hide_code=True)
def note(text):
    """A sentence in small letters."""
    return f'<span class="rv-note">{text}</span>'


@app.function(hide_code=True)
def cell(x):
    """A number of a table."""
    return minus(number(float(x))) if np.isfinite(x) else "–"


@app.cell(hide_code=True)
def _():
    tab = mo.ui.radio(VIEWS, VIEWS[0], inline=True)
    mo.vstack([mo.md("## retvar lab"), tab])
    return (tab,)


# ---------------------------------------------------------------- two step sizes


@app.function
def learn(mdp, methods, alpha, alpha_bar, kappa, value, steps, runs, seed):
    """All methods with the same experience: every run, at a hundred moments."""
    given = {"alpha": alpha, "alpha_bar": alpha_bar, "kappa": kappa, "kappa_bar": kappa}
    learners = {name: METHODS[name](**given, value=float(value)) for name in methods}
    return rv.simulate(
        mdp, learners, steps=steps, runs=runs, seed=seed, keep="runs", record=steps // 100
    )


@app.function
def expect(mdp, methods, alpha, alpha_bar, value, steps, **_):
    """What means and spreads tend to with more and more runs, without any run."""
    given = {"alpha": alpha, "alpha_bar": alpha_bar, "value": float(value)}
    learners = {name: METHODS[name](**given) for name in methods}
    return rv.expected_curve(mdp, learners, steps=steps, record=steps // 100)


@app.function
@lru_cache(32)
def scan(mdp, methods, alpha, alpha_bar, kappa, value, steps, runs, seed):
    """The error of each of several α in the second half of the run, [method, α]."""
    given = {"alpha_bar": alpha_bar, "kappa": kappa, "kappa_bar": kappa, "value": float(value)}
    learners = {f"{m} {a}": METHODS[m](alpha=a, **given) for m in methods for a in alpha}
    record = rv.Record(at=[steps], window=steps // 2)
    data = rv.simulate(mdp, learners, steps=steps, runs=runs, seed=seed, record=record)
    errors = np.sqrt(np.asarray(data.variance_window_mse.mean("state")))
    return errors.reshape(len(methods), len(alpha))


@app.cell(hide_code=True)
def _():
    domain = mo.ui.dropdown([*DOMAINS, OWN], "chain", label="domain")
    steps = mo.ui.dropdown([1_000, 2_000, 5_000, 20_000], 2_000, label="steps of a run")
    learning = mo.ui.dictionary({
        "alpha": slider("α: step size of the value J", 0.02, STEP_SIZES),
        "alpha_bar": slider("ᾱ: step size of the variance, or of VTD's M", 0.02, STEP_SIZES),
        "methods": mo.ui.multiselect(list(METHODS), list(METHODS)[:2], label="methods"),
        "kappa": slider("κ: trace decay", 0.0, SHARES),
        "value": mo.ui.number(-1e6, 1e6, value=0, label="J starts at", debounce=True),
        "runs": mo.ui.dropdown([5, 20, 100], 20, label="runs"),
        "seed": mo.ui.number(0, 999_999, value=0, label="seed", debounce=True),
    })  # fmt: skip
    return domain, learning, steps


@app.cell(hide_code=True)
def _(domain, own, steps):
    _mdp, _ = problem(domain.value, own)
    _solution, _every = rv.solve(_mdp), steps.value // 100
    _telling = int(np.argmax(np.abs(_solution.value) / np.maximum(_solution.std, 1e-9)))
    looking = mo.ui.dictionary({
        "step": slider("steps taken", steps.value, range(_every, steps.value, _every)),
        "state": mo.ui.dropdown(states_of(_mdp), _mdp.state_name(_telling), label="look at state"),
        "lam": discount(_mdp, "λ"),
        "gamma": discount(_mdp, "γ"),
    })  # fmt: skip
    return (looking,)


@app.cell
def _(domain, learning, looking, own, steps, tab):
    mo.stop(tab.value != VIEWS[0])
    mo.stop(not learning.value["methods"], mo.callout("Choose at least one method.", kind="warn"))
    given = {**learning.value, "steps": steps.value}
    mdp, made = problem(domain.value, own, looking.value["gamma"], looking.value["lam"])
    given["methods"] = tuple(m for m in METHODS if m in given["methods"])
    data = learn(mdp, **given)
    exact = expect(mdp, **given) if mdp.n_states <= MOST_STATES and not given["kappa"] else None
    scanned = scan(mdp, **{**given, "alpha": tuple(STEP_SIZES)})
    return data, exact, given, made, mdp, scanned


@app.cell(hide_code=True)
def _(data, domain, exact, given, learning, looking, made, mdp, scanned, steps):
    _solution, _s, _step = rv.solve(mdp), looking.value["state"], looking.value["step"]
    _name, _names = mdp.state_name(_s), list(states_of(mdp))
    _seen = data.sel(step=slice(None, _step))
    _now, _x = _seen.isel(step=-1), _seen.step.values
    _truth, _most = float(_solution.variance[_s]), float(np.max(_solution.variance))
    _parts = {
        m: words.parts(_now.variance.sel(learner=m), _solution.variance) for m in given["methods"]
    }
    _dashed = {"strokeDash": [3, 3], "strokeWidth": 1.2}
    _by_step, _errors, _rows = [], [], []
    for _m in given["methods"]:
        _runs = _seen.variance.sel(learner=_m)
        if exact is not None:
            _e = exact.sel(learner=_m)
            _mean, _std = (_e[n].isel(state=_s).values for n in ("variance", "variance_std"))
            _by_step.append((curve(_m, exact.step.values, _mean, _std), _dashed))
            _root = np.sqrt(_e.variance_mse.mean("state").values)
            _errors.append((curve(_m, exact.step.values, _root), _dashed))
        _own = _runs.isel(state=_s)
        _by_step.append((curve(_m, _x, _own.mean("run")), {"strokeWidth": 2.4}))
        _by_step.append((curve(_m, _x, _own.isel(run=0)), {"strokeWidth": 0.8, "opacity": 0.6}))
        _off = ((_runs - _solution.variance) ** 2).mean(["run", "state"]) ** 0.5
        _errors.append((curve(_m, _x, _off), {}))
        _last = _own.isel(step=-1)
        _rows.append(
            [charts.LABELS[_m], cell(_last.mean()), cell(_last.std()), cell(_parts[_m].error)]
        )

    def _dots(what, truth):
        spread = {m: [getattr(_now[what].sel(learner=m), f)("run").values for f in ("mean", "std")]
                  for m in given["methods"]}  # fmt: skip
        tables = [curve(m, _names, *each) for m, each in spread.items()]
        return pd.concat([*tables, curve("exact", _names, np.asarray(truth))])

    _low, _high = min(0.0, _solution.value.min()), max(0.0, _solution.value.max())
    _pad = 0.5 * (_high - _low or 1.0)
    _least = float(np.nanmin(np.where(np.isfinite(scanned), scanned, np.nan)))
    _scan = [(curve(m, STEP_SIZES, e), {}) for m, e in zip(given["methods"], scanned, strict=True)]
    _drawn = [
        charts.dots("Variance, state by state", _dots("variance", _solution.variance),
                    (-0.5 * _most, 1.7 * _most), "variance"),
        charts.lines(f"Variance of {_name}", *_by_step, x="steps", y="variance",
                     marks=[charts.level(_truth)], limits=(-0.5 * _truth, 2.5 * _truth)),
        charts.lines("Error over all states", *_errors, x="steps", y="root mean square",
                     limits=(0.0, 1.5 * _most)),
        charts.lines("Error against α in the second half", *_scan, x="α", y="root mean square",
                     log=True, limits=(0.0, 8 * _least),
                     marks=[charts.level(given["alpha"], vertical=True, colour="#222")]),
        charts.dots("Value, state by state", _dots("value", _solution.value),
                    (_low - _pad, _high + _pad), "value"),
    ]  # fmt: skip
    for _m in (m for m in given["methods"] if NETWORKS[m].second_moment is not None):
        _one = _seen.sel(learner=_m).isel(run=0, state=_s)
        _pair = [(curve("M", _x, _one.second_moment), {}), (curve("J²", _x, _one.value**2), {})]
        _title = f"Inside {charts.LABELS[_m]}: variance = M − J², one run of {_name}"
        _drawn.insert(2, charts.lines(_title, *_pair, x="steps", y=""))
    _missing = f"; not here: only up to {MOST_STATES} states, without traces" * (exact is None)
    _more = [looking["gamma"], steps, *(learning[name] for name in ("value", "runs", "seed"))]
    page(
        [domain, learning["alpha"], learning["alpha_bar"], looking["step"],
         looking["state"], learning["methods"], looking["lam"], learning["kappa"],
         mo.accordion({"more settings": mo.vstack(_more)})],
        [*words.learning(_parts, _step, given["runs"], given["alpha"], given["alpha_bar"]),
         note("Thick: mean over runs; thin: one run; dashed, with a band of one standard "
              f"deviation: exact expectations{_missing}. Every change repeats the experience.")],
        _drawn,
        ["", f"variance of {_name}", "± over runs", "error"],
        [*_rows, ["exact", cell(_truth), "", ""]],
        python_of(learn, made, **given),
    )  # fmt: skip
    return


# ---------------------------------------------------------------- a wrong value


@app.function
def frozen(mdp, error, where=None):
    """The exact value plus an error, in units of the largest value, in every state or in one."""
    value = np.asarray(rv.solve(mdp).value)
    place = np.ones(value.size) if where is None else np.arange(value.size) == where
    return value + error * np.abs(value).max() * place


@app.function
@lru_cache(32)
def goals(mdp, errors, where):
    """Where each method goes by theory, for each error of the value: {method: fixed points}."""
    values = [frozen(mdp, error, where) for error in errors]
    return {name: [rv.fixed_point(name, mdp, value=value) for value in values] for name in METHODS}


@app.function
def learn_frozen(mdp, error, where, alpha_bar, steps, runs, seed):
    """Learners whose value is frozen and wrong: means and spreads over runs."""
    given = {"alpha": 0.0, "alpha_bar": alpha_bar, "value": frozen(mdp, error, where)}
    learners = {name: kind(**given, learn_value=False) for name, kind in METHODS.items()}
    return rv.simulate(
        mdp, learners, steps=steps, runs=runs, seed=seed, record=steps // 100, truth=False
    )


@app.cell(hide_code=True)
def _():
    bias_domain = mo.ui.dropdown([*DOMAINS[:3], OWN], "chain", label="domain")
    bias = mo.ui.dictionary({
        "error": slider("error of the value / largest |value|", 0.25, ERRORS),
        "alpha_bar": slider("ᾱ: step size of the variance", 0.01, STEP_SIZES),
        "steps": mo.ui.dropdown([1_000, 5_000, 20_000], 5_000, label="steps of a run"),
        "runs": mo.ui.dropdown([5, 20, 100], 20, label="runs"),
        "seed": mo.ui.number(0, 999_999, value=0, label="seed", debounce=True),
    })  # fmt: skip
    return bias, bias_domain


@app.cell(hide_code=True)
def _(bias_domain, own):
    _mdp, _ = problem(bias_domain.value, own)
    _states, _last = states_of(_mdp), _mdp.state_name(_mdp.n_states - 1)
    bias_place = mo.ui.dictionary({
        "where": mo.ui.dropdown({"every state": None, **_states}, "every state", label="error in"),
        "state": mo.ui.dropdown(_states, _last, label="state to look at"),
        "lam": discount(_mdp, "λ"),
    })  # fmt: skip
    return (bias_place,)


@app.cell
def _(bias, bias_domain, bias_place, own, tab):
    mo.stop(tab.value != VIEWS[1])
    bias_mdp, bias_made = problem(bias_domain.value, own, None, bias_place.value["lam"])
    bias_given = {**bias.value, "where": bias_place.value["where"]}
    bias_data = learn_frozen(bias_mdp, **bias_given)
    points = goals(bias_mdp, tuple(ERRORS), bias_given["where"])
    return bias_data, bias_given, bias_made, bias_mdp, points


@app.cell(hide_code=True)
def _(bias, bias_data, bias_domain, bias_given, bias_made, bias_mdp, bias_place, points):
    _s, _e = bias_place.value["state"], bias_given["error"]
    _name, _names = bias_mdp.state_name(_s), list(states_of(bias_mdp))
    _here = {m: each[ERRORS.index(_e)] for m, each in points.items()}
    _exact = [p.truth.variance for p in next(iter(points.values()))]
    _truth = np.asarray(_exact[ERRORS.index(_e)])
    _dashed = curve("exact", ERRORS, np.array([x[_s] for x in _exact]))
    _theory, _way, _tables, _rows = [(_dashed, {"strokeDash": [5, 4]})], [], [], []
    _marks = [charts.level(float(_truth[_s]))]
    for _m, _point in _here.items():
        _goal = np.array([p.variance[_s] for p in points[_m]])
        _theory.append((curve(_m, ERRORS, _goal), {}))
        _mean, _std = (bias_data[n].sel(learner=_m) for n in ("variance", "variance_std"))
        _own = _mean.isel(state=_s).values, _std.isel(state=_s).values
        _way.append((curve(_m, bias_data.step.values, *_own), {}))
        _ink = charts.METHODS[_m].colour
        _marks.append(charts.level(float(_point.variance[_s]), colour=_ink))
        _tables.append(curve(_m, _names, _mean.isel(step=-1).values, _std.isel(step=-1).values))
        _found = (_own[0][-1], _point.variance[_s], _point.bias[_s].round(12) + 0.0)
        _rows.append([charts.LABELS[_m], *map(cell, _found)])
    _all = pd.concat([*_tables, curve("exact", _names, _truth)])
    _limits = float(_all.low.min()), float(max(_all.high.max(), _all.y.max()))
    _size = _e * float(np.abs(rv.solve(bias_mdp).value).max())
    page(
        [bias_domain, bias["error"], bias_place["where"], bias_place["state"], bias["alpha_bar"],
         bias_place["lam"], mo.accordion({
             "more settings": mo.vstack([bias["steps"], bias["runs"], bias["seed"]])})],
        words.bias(_here, _s, _name, _size),
        [charts.lines(f"Where each method goes: variance of {_name}", *_theory, y="variance",
                      x="error of the value / largest |value|",
                      marks=[charts.level(_e, vertical=True)]),
         charts.lines(f"On the way: variance of {_name}", *_way, x="steps", y="variance",
                      marks=_marks),
         charts.dots("State by state, learned", _all, _limits, "variance")],
        ["", "learned", "theory: goes to", "bias"],
        [*_rows, ["exact", "", cell(_truth[_s]), "0"]],
        python_of(learn_frozen, bias_made, frozen, **bias_given),
    )  # fmt: skip
    return


# ---------------------------------------------------------------- your own MDP


@app.cell(hide_code=True)
def _():
    begin = mo.ui.dropdown(
        mdp_table.EXAMPLES, mdp_table.EXAMPLES[0], label="begin with (replaces the table)"
    )
    return (begin,)


@app.cell(hide_code=True)
def _(begin):
    told = "Edges: click a cell to edit; gamma is γ on arrival"
    edges = mo.ui.data_editor(mdp_table.rows_of(begin.value), pagination=False, label=told)
    own_lam = mo.ui.text(
        mdp_table.lam_of(begin.value), label="λ: one number, or one for each state"
    )
    own_policy = mo.ui.dropdown(["uniform", "greedy"], "uniform", label="policy")
    return edges, own_lam, own_policy


@app.cell
def _(edges, own_lam):
    rows = list(edges.value)
    own, wrong = problem("chain", None), mdp_table.errors(rows)
    if not wrong:
        try:
            _mdp = mdp_table.to_mdp(rows, own_lam.value)
            rv.solve(_mdp)  # raises an error where returns are not finite
            own = _mdp, mdp_table.source(rows, own_lam.value)
        except rv.RetvarError as _error:
            wrong = [str(_error)]
    return own, wrong


@app.cell(hide_code=True)
def _(begin, edges, own, own_lam, own_policy, tab, wrong):
    mo.stop(tab.value != VIEWS[2])
    if wrong:
        _told = "\n".join(f"- {escaped(each)}" for each in wrong)
        _shown = mo.callout(mo.md(_told), kind="danger")
    else:
        _mdp, _code = own
        _found = rv.solve(_mdp, own_policy.value)
        _pairs = zip(_found.value, _found.std, strict=True)
        _table = pd.DataFrame({
            "state": list(states_of(_mdp)),
            "value ± std": [minus(plus_minus(v, s)) for v, s in _pairs],
            "variance": [cell(x) for x in _found.variance],
        })  # fmt: skip
        _python = f"import retvar as rv\n\nmdp = {_code}\nprint(rv.solve(mdp))"
        _shown = mo.vstack([
            mo.plain(_table.set_index("state")),
            mo.as_html(rv.plots.draw_mdp(_mdp, own_policy.value)),
            mo.accordion({
                "The Python that makes it": mo.md(f"```python\n{_python}\n```"),
                "As TOML, for rv.MDP.from_toml": mo.md(f"```toml\n{toml_text(_mdp)}\n```"),
            }),
            mo.md("The other views list it as *your own MDP*."),
        ])  # fmt: skip
    _left = mo.as_html(mo.vstack([begin, edges, own_lam, own_policy]))
    mo.Html(f'<div class="rv-two"><div>{_left}</div><div>{mo.as_html(_shown)}</div></div>')
    return


# ---------------------------------------------------------------- a grid world


@app.function
def policy_of(mdp, kind, epsilon):
    """The random, the greedy or the ε-greedy policy."""
    if kind != "ε-greedy":
        return mdp.policy("uniform" if kind == "random" else "greedy")
    greedy, random = (mdp.policy(name).probabilities for name in ("greedy", "uniform"))
    return rv.Policy((1 - epsilon) * greedy + epsilon * random)


@app.function
def walk(mdp, env, options, policy, epsilon, method, alpha, gamma, steps, seed):
    """An estimate from so many steps of experience, and the exact answer."""
    chosen = policy_of(mdp, policy, epsilon)
    log = rv.experience.from_gymnasium(env, chosen, steps=steps, seed=seed, **options)
    if method == "least squares":
        found = rv.estimate(log, gamma=gamma)
    else:
        found = rv.estimate(log, METHODS[method](alpha=alpha, gamma=gamma, lam=1.0))
    return found, rv.solve(mdp, chosen)


@app.cell(hide_code=True)
def _():
    world = mo.ui.dropdown(list(WORLDS), "FrozenLake", label="world")
    walking = mo.ui.dictionary({
        "steps": slider("steps of experience", 1_000, [100, 300, 3_000, 10_000, 30_000]),
        "policy": mo.ui.dropdown(["random", "greedy", "ε-greedy"], "ε-greedy", label="policy"),
        "epsilon": slider("ε: share of random actions", 0.2, SHARES),
        "gamma": slider("γ", 0.95, [0.5, 0.7, 0.8, 0.9, 0.98, 0.99]),
        "method": mo.ui.dropdown(["least squares", *METHODS], "least squares", label="method"),
        "alpha": slider("α of the learner", 0.05, [0.005, 0.01, 0.02, 0.1, 0.2, 0.5]),
        "seed": mo.ui.number(0, 999_999, value=0, label="seed", debounce=True),
    })  # fmt: skip
    return walking, world


@app.cell
def _(tab, walking, world):
    mo.stop(tab.value != VIEWS[3])
    _env, _options = WORLDS[world.value]
    walk_given = {"env": _env, "options": _options, **walking.value}
    walk_mdp, walk_made = problem(world.value, None, walk_given["gamma"])
    walk_found, walk_exact = walk(walk_mdp, **walk_given)
    return walk_exact, walk_found, walk_given, walk_made


@app.cell(hide_code=True)
def _(walk_exact, walk_found, walk_given, walk_made, walking, world):
    _data, _visits = walk_found.data, walk_found.data.visits.values
    _errors = []
    for _what in ("value", "std"):
        _off = _data[_what].values - np.asarray(getattr(walk_exact, _what))
        _known = np.isfinite(_off)
        _errors.append(cell(np.sqrt(np.average(_off[_known] ** 2, weights=_visits[_known]))))
    page(
        [world, *walking.elements.values()],
        [f"{walk_given['steps']:,} steps, {int((_visits > 0).sum())} cells seen. Typical error, "
         f"weighted by visits: value {_errors[0]}, std {_errors[1]}.",
         note("Above learned, below exact. ε and α count where the policy is ε-greedy and the "
              "method a learner.")],
        [drawing(rv.plots.estimate_maps(_data)), drawing(rv.plots.solution(walk_exact))],
        ["", "value", "std"],
        [["error", *_errors]],
        python_of(walk, walk_made, policy_of, **walk_given),
    )  # fmt: skip
    return


# ---------------------------------------------------------------- risk against return


@app.function
def search(mdp, scales):
    """Policies that trade mean for variance; penalties in units of 1/std of the greedy return."""
    start = rv.frontier(mdp, penalties=[0.0])[0]
    std = start.std if start.std > 1e-6 * max(abs(start.mean), 1.0) else max(abs(start.mean), 1.0)
    return rv.frontier(mdp, penalties=[float(f"{scale / std:.2g}") for scale in scales])


@app.cell(hide_code=True)
def _():
    risk_domain = mo.ui.dropdown(
        ["windy-cliff", "FrozenLake", "CliffWalking, slippery", OWN],
        "windy-cliff",
        label="domain",
    )
    return (risk_domain,)


@app.cell
def _(own, risk_domain, tab):
    mo.stop(tab.value != VIEWS[4])
    risk_mdp, risk_made = problem(risk_domain.value, own)
    scales = [0.0, 0.05, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0, 12.0]
    found = search(risk_mdp, scales)
    penalty = slider("penalty c", 0.0, [point.penalty for point in found])
    return found, penalty, risk_made, risk_mdp, scales


@app.cell(hide_code=True)
def _(found, penalty, risk_domain, risk_made, risk_mdp, scales):
    _k = [point.penalty for point in found].index(penalty.value)
    _probabilities = [found[k].policy.probabilities for k in (0, _k)]
    _changed = np.flatnonzero(np.ptp(_probabilities, axis=0).max(axis=1) > 1e-6)
    _figure = rv.plots.frontier(found, sorted({0, _k}), samples=5_000)
    _drawn = [drawing(_figure)]
    if risk_mdp.positions is None:
        _drawn.append(rv.plots.draw_mdp(risk_mdp, found[_k].policy))
    page(
        [risk_domain, penalty],
        [words.choice(found[_k], found[0], [risk_mdp.state_name(s) for s in _changed]),
         note("The best found for mean − c × variance of the return, not proved best. Arrows are "
              "the policy, darker where it comes more often; beside them 5,000 sampled returns.")],
        _drawn,
        ["penalty", "mean", "std"],
        [[f"{p.penalty:g}", cell(p.mean), cell(p.std)] for p in found],
        python_of(search, risk_made, scales=scales),
    )  # fmt: skip
    return


if __name__ == "__main__":
    app.run()
