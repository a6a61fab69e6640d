"""The lab: its numbers, its words, its table, and the code that it shows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv

pytest.importorskip("marimo", reason="marimo: make browser")
pytest.importorskip("altair", reason="altair: make browser")

from retvar.lab import app, mdp_table, words

GIVEN = {"methods": ("direct", "vtd"), "alpha": 0.2, "alpha_bar": 0.02, "kappa": 0.0, "value": 0,
         "steps": 1_000, "runs": 5, "seed": 0}  # fmt: skip


@pytest.fixture(scope="module")
def chain():
    return rv.domains.chain()


def test_the_page_runs_and_shows_charts_words_a_table_and_code():
    outputs, found = app.app.run()
    page = max((each.text for each in outputs if each is not None), key=len)
    assert page.count("<marimo-mime-renderer") == 6
    assert "VTD learns the second moment M" in page
    assert "The Python that makes this" in page
    assert found["data"].sizes["step"] == 100


def test_unequal_steps_make_vtd_worse_and_the_words_say_so(chain):
    now = app.learn(chain, **GIVEN).isel(step=-1)
    truth = rv.solve(chain).variance
    parts = {m: words.parts(now.variance.sel(learner=m), truth) for m in GIVEN["methods"]}
    assert parts["vtd"].error > 3 * parts["direct"].error
    told = " ".join(words.learning(parts, 1_000, 5, 0.2, 0.02))
    assert "VTD's is" in told
    assert "α is 10 times ᾱ" in told


def test_exact_curves_are_near_many_runs(chain):
    given = {**GIVEN, "alpha": 0.02, "runs": 400}
    found = app.learn(chain, **given).variance.mean("run").isel(step=-1)
    exact = app.expect(chain, **given).isel(step=-1)
    error = exact.variance_std.values / np.sqrt(400)
    assert (np.abs(found.values - exact.variance.values) < 5 * error).all()


def test_the_scan_has_the_error_of_each_step_size(chain):
    alone = app.scan(chain, **{**GIVEN, "alpha": (0.02,)})
    several = app.scan(chain, **{**GIVEN, "alpha": (0.001, 0.02, 0.5)})
    assert_allclose(several[:, 1], alone[:, 0])
    assert several[1].argmin() == 1  # VTD: one valley, at α = ᾱ


def test_runs_that_diverge_are_counted_and_named():
    runs = np.array([[1.0, 2.0], [1e9, 2.0], [np.nan, 1.0]])
    found = words.parts(runs, [1.0, 2.0])
    assert found.diverged == 2
    assert "diverged in 2 runs of 3" in " ".join(words.learning({"vtd": found}, 10, 3, 1.0, 1.0))


def test_a_wrong_value_biases_direct_up_and_vtd_down_and_centred_not(chain):
    """In the last state the return has mean 1: biases e², −e² − 2e and 0."""
    points = app.goals(chain, (0.25,), None)  # the largest value is 4, so e = 1
    biases = [points[m][0].bias[3] for m in ("direct", "vtd", "centred")]
    assert_allclose(biases, [1.0, -3.0, 0.0], atol=1e-12)
    told = words.bias({m: each[0] for m, each in points.items()}, 3, "s3", 1.0)[0]
    assert "VTD to −2.00 (3.00 too low)" in told
    data = app.learn_frozen(chain, 0.25, None, 0.01, 5_000, 20, 0)
    assert_allclose(data.variance.isel(step=-1, state=3), [2.0, -2.0, 1.0], atol=0.3)


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", mdp_table.EXAMPLES[1:4])
def test_a_domain_survives_the_table(name):
    rows, lam = mdp_table.rows_of(name), mdp_table.lam_of(name)
    assert mdp_table.errors(rows) == []
    found, original = mdp_table.to_mdp(rows, lam), rv.domains.find(name)
    for what in ("value", "variance"):
        one, other = (getattr(rv.solve(each, "uniform"), what) for each in (found, original))
        assert_allclose(one, other)


@pytest.mark.parametrize(
    ("column", "text"),
    [("probability", "lots"), ("reward", ""), ("reward_std", "-1"), ("gamma", "1.5"),
     ("state", "end"), ("action", " ")],
)  # fmt: skip
def test_an_error_of_the_table_names_its_place(column, text):
    rows = mdp_table.rows_of("a shop")
    rows[0][column] = text
    assert any(f"row 1, {column}" in each for each in mdp_table.errors(rows))


def test_the_code_of_an_own_mdp_makes_it():
    rows = mdp_table.rows_of("complex-mdp")
    lam = mdp_table.lam_of("complex-mdp")
    made = eval(mdp_table.source(rows, lam), {"rv": rv})
    exact = rv.solve(rv.domains.complex_mdp(), "uniform")
    assert_allclose(rv.solve(made).variance, exact.variance)


# ---------------------------------------------------------------- grid, frontier, code


def test_a_walk_comes_near_the_exact_answer():
    mdp = rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)
    found, exact = app.walk(
        mdp, "FrozenLake-v1", {}, "greedy", 0.0, "least squares", 0.1, 0.9, 20_000, 0
    )
    known = found.data.visits.values > 200
    assert_allclose(found.data.value.values[known], exact.value[known], atol=0.05)


@pytest.mark.parametrize("view", ["learn", "learn_frozen", "search"])
def test_the_code_that_is_shown_runs_and_gives_the_same_numbers(view, chain, capsys):
    settings = {
        "learn": GIVEN,
        "learn_frozen": {"error": 0.25, "where": None, "alpha_bar": 0.1, "steps": 100, "runs": 2,
                         "seed": 0},
        "search": {"scales": [0.0, 1.0]},
    }[view]  # fmt: skip
    helpers = [app.frozen] if view == "learn_frozen" else []
    mdp, made = app.problem("chain", None, lam=0.5)
    code = app.python_of(getattr(app, view), made, *helpers, **settings)
    known = {}
    exec(code, known)
    again = getattr(app, view)(mdp, **settings)
    if view == "search":
        assert [p.mean for p in known["found"]] == [p.mean for p in again]
    else:
        assert known["found"].identical(again)
