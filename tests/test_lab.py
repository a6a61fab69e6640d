"""The lab without its page: models of views, charts, code, and who the server answers.

What is seen in a browser is in `tests/test_browser_lab.py`.
"""

import asyncio
import importlib
import math
import os
import re
import socket
import sys
import tempfile
import webbrowser
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import retvar as rv
from retvar import files
from retvar.cli import main
from retvar.lab import code, elements, learning_words, server, svg, views
from retvar.lab.bias import ERRORS, Bias, BiasSettings
from retvar.lab.editor import example
from retvar.lab.learning import ALPHAS, METHODS, Learning, Settings
from retvar.lab.problem import DOMAINS, Problem
from tests import oracle

CHAIN, COMPLEX = Problem.named("chain"), Problem.named("complex-mdp")


def parsed(chart):
    """A chart as XML; fails if it is not well-formed."""
    return ElementTree.fromstring(chart)


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize("problem", [CHAIN, COMPLEX], ids=["chain", "complex"])
def test_each_run_of_the_view_is_that_of_an_online_learner(problem):
    view = Learning(problem, Settings(alpha=0.1, runs=3, seed=5), step=700)
    for run in (0, 2):
        columns = rv.replay(problem.mdp, run=run, seed=5, steps=700)
        for method, learner in view.settings.learners().items():
            alone = learner.online(states=problem.mdp.n_states)
            alone.update_many(columns)
            assert (view.variance(method)[run] == alone.variance()).all()


def test_the_exact_marks_are_the_variance_of_sampled_returns():
    """λ = 1 on the chain: the return from a state is a sum of independent N(1, 1) rewards."""
    problem = Problem.named("chain", lam=1.0)
    assert np.allclose(problem.solution.value, [4, 3, 2, 1])
    assert np.allclose(problem.solution.variance, [4, 3, 2, 1])
    assert np.allclose(problem.error_size, 1.0)  # δ = R − 1


def test_the_past_does_not_depend_on_how_long_the_run_will_be():
    short = Learning(CHAIN, Settings(alpha=0.1, steps=1_000), step=1_000)
    long = Learning(CHAIN, Settings(alpha=0.1, steps=5_000), step=1_000)
    for method in short.settings.methods:
        assert (short.variance(method) == long.variance(method)).all()
    short.advance(10**6)
    assert short.done
    assert short.step == 1_000


def test_errors_are_root_mean_squares_over_states_and_runs():
    view = Learning(COMPLEX, Settings(alpha=0.05), step=1_000)
    truth = rv.solve(COMPLEX.mdp).variance
    for method in view.settings.methods:
        found = view.error(method)
        mean = np.mean((view.variance(method) - truth) ** 2)
        assert math.isclose(found.measured, math.sqrt(mean))
        assert 0.5 < found.measured / found.expected < 2.0  # 20 runs; seeded


def test_with_equal_steps_vtd_is_one_minus_alpha_times_direct_in_every_run():
    for alpha in (0.02, 0.2):
        view = Learning(CHAIN, Settings(alpha=alpha, alpha_bar=alpha), step=1_500)
        direct, vtd = (view.variance(name) for name in ("direct", "vtd"))
        assert np.allclose(vtd, (1 - alpha) * direct, rtol=1e-9)


def test_the_push_is_what_vtd_adds_to_direct_in_one_update():
    """V of VTD moves by direct's move + 2(ᾱ − α)Jδ − (αδ)², here with δ = ±1 and J exact."""
    view = Learning(CHAIN, Settings(alpha=0.2, alpha_bar=0.02))
    exact, s = rv.solve(CHAIN.mdp), 1
    moved = {}
    for sign in (-1, 1):
        for name, learner in view.settings.learners().items():
            started = learner.replace(value=exact.value, initial_variance=exact.variance)
            alone = started.online(states=4)
            alone.update(s, 1.0 + sign, s + 1, gamma=1.0, lam=0.9)  # δ = ±1
            moved[name, sign] = alone.variance(s) - exact.variance[s]
        extra = moved["vtd", sign] - moved["direct", sign]
        assert math.isclose(extra + 0.2**2, -sign * view.push(s), rel_tol=1e-9)
    assert Learning(CHAIN, Settings()).push(s) == 0


def test_vtd_is_best_where_the_steps_are_equal_and_much_worse_where_they_part():
    view = Learning(CHAIN, Settings(alpha_bar=0.02))
    found = view.scan()
    equal = ALPHAS.index(0.02)
    assert abs(int(np.argmin(found["vtd"])) - equal) <= 1
    assert found["vtd"][equal] < 1.2 * found["direct"][equal]
    for k, alpha in enumerate(ALPHAS):  # a smaller α has not learned yet, 1 never does
        if 0.08 < alpha < 0.5 or 0.002 < alpha < 0.01:
            assert found["vtd"][k] > 1.8 * found["direct"][k], alpha
    now = Learning(CHAIN, Settings(alpha=0.2, alpha_bar=0.02), step=2_000)
    k = ALPHAS.index(0.2)
    late = now.errors("vtd")[100:]  # the same runs, at other moments of the second half
    assert 0.8 < found["vtd"][k] / np.sqrt(np.mean(late**2)) < 1.25


def test_sentences_say_what_the_numbers_say():
    apart = Learning(CHAIN, Settings(alpha=0.2, alpha_bar=0.02), step=2_000)
    said = apart.sentences(0)
    ratio = apart.error("vtd").measured / apart.error("direct").measured
    assert f"VTD's is {ratio:.1f} times larger" in said[0]
    assert "α is 10 times ᾱ" in " ".join(said)
    assert "J is 4: 48% of the variance" in " ".join(said)  # 2 · 0.18 · 4 · 1 / 2.9975
    equal = Learning(CHAIN, Settings(alpha=0.02, alpha_bar=0.02), step=2_000)
    assert "nearly the same" in equal.sentences(0)[0]
    assert "α = ᾱ, and they cancel" in " ".join(equal.sentences(0))
    assert learning_words._times(1_000.0) == "1,000 times"
    far = Learning(Problem.named("random-walk"), Settings(), step=500)
    assert "more than 6 states" in far.sentences(0)[-1]
    assert far.expected("direct") is None
    assert math.isnan(far.error("direct").expected)


def test_bias_and_noise_are_the_two_parts_of_the_error():
    """error² = bias² + noise² in the mean: of the expected curve exactly, of 100 runs nearly."""
    view = Learning(CHAIN, Settings(alpha=0.00398, alpha_bar=0.02, runs=100), step=2_000)
    for method in ("direct", "vtd"):
        found, curve = learning_words.parts(view, method), view.expected(method)
        exact = curve.variance.values[view.moment] - CHAIN.solution.variance
        assert found.bias == pytest.approx(math.sqrt(np.mean(exact**2)), rel=0.1)
        spread = curve.variance_std.values[view.moment]
        assert found.noise == pytest.approx(math.sqrt(np.mean(spread**2)), rel=0.2)
        assert math.hypot(found.bias, found.noise) == pytest.approx(
            view.error(method).measured, rel=0.02
        )
        assert found.biased
        assert found.moving


def test_a_slow_value_is_told_as_a_bias_to_one_side():
    said = " ".join(Learning(CHAIN, Settings(alpha=0.00398), step=2_000).sentences(0))
    assert "the mean over runs is 9.43, and the variance 3.00. J² is still behind M" in said
    assert "M − J² is too large" in said
    assert "Not there yet: play longer, or take larger steps" in said
    other = " ".join(Learning(CHAIN, Settings(alpha=1.0, alpha_bar=0.001), step=500).sentences(0))
    assert "M is still behind J²" in other
    assert "M − J² is too small" in other
    there = " ".join(Learning(CHAIN, Settings(), step=2_000).sentences(0))
    assert "bias" not in there.lower()
    assert "behind" not in there


def test_a_bias_that_stays_is_not_blamed_on_a_short_run():
    view = Learning(CHAIN, Settings(alpha=0.2, alpha_bar=0.02), step=2_000)
    assert not learning_words.parts(view, "direct").moving
    assert "It no longer moves: more steps do not help" in " ".join(view.sentences(0))


def test_an_error_of_vtd_that_is_smaller_is_explained():
    stuck = Learning(CHAIN, Settings(alpha=1.0, alpha_bar=1.0), step=2_000).sentences(0)
    assert "times smaller" in stuck[0]
    assert "VTD says 0, whatever the variance is" in stuck[1]
    assert "Not there yet" not in " ".join(stuck)
    large = Learning(CHAIN, Settings(alpha=0.2, alpha_bar=0.2), step=2_000).sentences(0)
    assert "1 − α = 0.8 times direct's in every run" in large[1]
    walk = Problem.named("random-walk")
    short = Learning(walk, Settings(alpha=0.1, alpha_bar=0.2), step=2_000).sentences(0)
    assert "times smaller" in short[0]
    assert "the run is short and J has not arrived" in short[1]


def test_a_learner_that_diverges_is_named_and_never_drawn_as_a_number():
    view = Learning(CHAIN, Settings(), step=2_000)
    data = view.data.copy(deep=True)
    data["variance"][3, 1, 50:] = np.nan
    data["diverged"][1] = 1

    class Broken(Learning):
        data = property(lambda self: self.broken)

    broken = Broken(CHAIN, Settings(), step=2_000)
    broken.broken = data
    assert "VTD has diverged in 1 run" in " ".join(broken.sentences(0))
    assert np.isfinite(broken.error("vtd").measured)
    for chart in broken.charts(0):
        assert "nan" not in chart
    data["variance"][:, 1] = np.nan
    assert math.isnan(broken.error("vtd").measured)
    for chart in broken.charts(0):
        assert "nan" not in chart
        parsed(chart)


def test_runs_that_diverge_are_told_in_words_without_a_warning(recwarn):
    shop = Problem(example().mdp.replace(lam=1.0), "")
    view = Learning(shop, Settings(alpha=1.0, alpha_bar=1.0, kappa=1.0))
    assert view.diverged() == {}  # not yet
    view.advance(2_000)
    assert view.diverged() == {"direct": 20, "vtd": 20}
    said = view.sentences(0)
    assert said[0].startswith("Direct has diverged in 20 runs of 20")
    assert not any("e+" in sentence or "∞" in sentence for sentence in said)
    for chart in view.charts(0):
        parsed(chart)
        assert "nan" not in chart
        assert "inf" not in chart
    shelf = views.Shelf()
    shelf.put("mine", shop)
    page = views.LearningView(shelf)
    values = {**defaults(page), "alpha": 1.0, "alpha_bar": 1.0, "kappa": 1.0}
    assert page.show(values, 2_000).rows[1][1:4] == ["diverged"] * 3
    assert [str(each.message) for each in recwarn] == []


# ---------------------------------------------------------------------- bias


def test_the_bias_of_the_last_state_of_the_chain_has_its_closed_form():
    """G is N(1, 1) there: direct finds 1 + e², VTD E G² − (1 + e)², centred 1."""
    for error in ERRORS:
        view = Bias(CHAIN, BiasSettings(error=error))
        e = 4 * error
        assert math.isclose(view.bias("direct")[3], e**2, abs_tol=1e-9)
        assert math.isclose(view.bias("vtd")[3], -(e**2) - 2 * e, abs_tol=1e-9)
        assert math.isclose(view.bias("centred")[3], 0, abs_tol=1e-9)


def test_an_error_in_one_state_leaves_those_after_it_alone():
    view = Bias(CHAIN, BiasSettings(error=0.25, where=1))
    assert np.allclose(view.value, [4, 4, 2, 1])
    for method in METHODS:
        assert np.allclose(view.bias(method)[2:], 0, atol=1e-9)


@pytest.mark.parametrize("error", [-0.3, 0.25])
def test_learners_go_where_theory_says(error):
    """20 runs at ᾱ = 0.01: five times the spread over runs, / √20; seeded."""
    view = Bias(CHAIN, BiasSettings(error=error, steps=20_000))
    view.advance(20_000)
    for method in METHODS:
        spread = view.data.variance_std.sel(learner=method).values[-1]
        off = np.abs(view.variance(method) - view.point(method).variance)
        slack = 5 * spread / math.sqrt(20) + 0.02  # noise of the mean node: of the order of ᾱ
        assert (off < slack).all(), method
    said = " ".join(view.sentences(3))
    assert "by theory direct goes to" in said
    assert "and centred to 1.00, the variance itself" in said


# ---------------------------------------------------------------------- code


def executed(text, monkeypatch, folder):
    monkeypatch.chdir(folder)
    names = {}
    exec(compile(text, "view.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (CHAIN, Settings(alpha=0.2, runs=5)),
        (CHAIN, Settings(alpha=0.1, value=1.5, seed=7, steps=1_001)),
        (Problem.named("complex-mdp", gamma=0.9, lam=0.5), Settings(methods=METHODS, runs=3)),
    ],
    ids=["chain", "start", "centred"],
)
def test_the_code_of_learning_gives_the_numbers_of_the_view(
    problem, settings, monkeypatch, tmp_path
):
    view = Learning(problem, settings, step=600)
    found = executed(code.learning_code(view), monkeypatch, tmp_path)
    for method in settings.methods:
        error = view.error(method)
        assert float(found["error"].sel(learner=method)) == pytest.approx(error.measured, rel=1e-12)
        exact = float(found["expected"].sel(learner=method))
        assert exact == pytest.approx(error.expected, rel=1e-9)
        mean = view.variance(method).mean(axis=0)
        assert np.allclose(found["variance"].sel(learner=method), mean, rtol=1e-12)
    assert (tmp_path / "learning.png").exists()


def test_the_code_of_a_view_that_has_not_begun_gives_its_first_numbers(monkeypatch, tmp_path):
    view = Learning(CHAIN, Settings(value=1.5, runs=3))
    found = executed(code.learning_code(view), monkeypatch, tmp_path)
    for method in view.settings.methods:
        measured = float(found["error"].sel(learner=method))
        assert measured == pytest.approx(view.error(method).measured, rel=1e-12)
        assert float(found["variance"].step) == 0
    wrong = executed(code.bias_code(Bias(CHAIN)), monkeypatch, tmp_path)
    assert float(wrong["variance"].step) == 0


@pytest.mark.parametrize("where", [None, 2])
def test_the_code_of_the_bias_gives_the_numbers_of_the_view(where, monkeypatch, tmp_path, capsys):
    view = Bias(CHAIN, BiasSettings(error=0.2, where=where, runs=5), step=1_000)
    found = executed(code.bias_code(view), monkeypatch, tmp_path)
    assert (found["value"] == view.value).all()
    for method in METHODS:
        assert np.allclose(found["variance"].sel(learner=method), view.variance(method))
    assert (found["point"].bias == view.bias(METHODS[-1])).all()


# ---------------------------------------------------------------------- views


def defaults(view):
    source = {c.name: c.value for c in view.sources()}
    return {**source, **{c.name: c.value for c in view.controls(source)}}


@pytest.mark.parametrize("make", views.VIEWS, ids=lambda make: make.__name__)
def test_a_view_shows_something_for_its_first_settings(make):
    view = make(views.Shelf())
    values = defaults(view)
    for step in (0, views.frame(view, values), view.length(values)):
        screen = view.show(values, step)
        page = elements.screen_page(screen)
        assert screen.charts
        for chart in screen.charts:
            root = parsed(chart)
            assert root.find("{http://www.w3.org/2000/svg}title").text
            assert "nan" not in chart
            assert "inf" not in chart
        assert "<script" not in page
        compile(screen.code, "view.py", "exec")


@pytest.mark.parametrize("name", DOMAINS)
def test_every_control_starts_at_one_of_its_options_in_every_domain(name):
    for make in (views.LearningView, views.BiasView):
        for control in make(views.Shelf()).controls({"domain": name}):
            options = control.options
            if control.kind == "number":
                assert options[0] <= control.value <= options[1]
            elif control.kind == "many":
                assert set(control.value) <= set(options.values())
            else:
                known = options.values() if isinstance(options, dict) else options
                assert control.value in list(known), control.name


def test_a_problem_that_was_edited_can_be_learned():
    edges = [("<b>", "go", "x", 0.5, 1.0, 1.0), ("<b>", "go", "end", 0.5, 3.0, 1.0),
             ("x", "go", "end", 1.0, 2.0, 1.0)]  # fmt: skip
    lines = f"mdp = rv.MDP.from_edges({edges!r}, gamma=1.0)"
    shelf = views.Shelf()
    shelf.put("mine", Problem(rv.MDP.from_edges(edges, gamma=1.0), lines))
    view = views.LearningView(shelf)
    values = defaults(view)
    assert values["domain"] == "mine"
    screen = view.show(values, 500)
    assert lines in screen.code
    assert "<b>" not in elements.screen_page(screen)
    assert "&lt;b&gt;" in elements.screen_page(screen)


def test_settings_that_cannot_be_are_refused_with_their_name():
    view = views.LearningView(views.Shelf())
    with pytest.raises(rv.InputError, match="methods") as refused:
        view.show({**defaults(view), "methods": []}, 0)
    assert "choose at least one" in elements.error_page(refused.value)


def test_the_domains_own_discounts_are_left_out_of_the_code():
    view = views.LearningView(views.Shelf())
    values = defaults(view)
    assert values["lam"] == 0.9
    assert ".replace(" not in view.show(values, 0).code
    changed = view.show({**values, "lam": 0.5, "gamma": 0.95}, 0)
    assert ".replace(gamma=0.95, lam=0.5)" in changed.code
    assert view.model(values, 0).problem is view.model(values, 10).problem  # so results are kept


# ---------------------------------------------------------------------- charts


def test_a_line_of_many_points_is_thinned_and_keeps_its_ends():
    x = np.arange(100_000)
    chart = svg.line_chart("many", [svg.Line("", x, np.sin(x / 9e3))])
    (points,) = re.findall('<polyline points="([^"]*)"', chart)
    first, *_, last = points.split()
    assert len(points.split()) <= svg.MOST_POINTS
    assert (first.split(",")[0], last.split(",")[0]) == ("52.0", "380.0")


def test_gaps_empty_lines_and_equal_numbers_are_drawn():
    y = [1.0, math.nan, 3.0, 4.0, math.inf, 2.0]
    chart = svg.line_chart("gaps", [svg.Line("a", range(6), y, low=y, high=y)])
    assert chart.count("<polyline") == 3
    for lines in ([], [svg.Line("a", [], [])], [svg.Line("a", [1, 1], [2, 2])]):
        drawn = svg.line_chart("few", lines)
        parsed(drawn)
        assert "nan" not in drawn
    parsed(svg.dot_chart("none", [], []))
    parsed(svg.heat_map("none", np.full((2, 2), math.nan)))


def test_what_is_off_the_scale_is_an_arrow_at_its_edge_with_the_number():
    marks = [svg.Mark("now", 0.5, 9.431), svg.Mark("then", 0.5, -70.0), svg.Mark("here", 0.5, 0.5)]
    lines = [svg.Line("", [0, 1], [0, 1])]
    dots = [svg.Dots("VTD", [9.431, -70.0, 0.5, 1e300])]
    for chart in (
        svg.line_chart("marks", lines, marks=marks, y_range=(0, 1)),
        svg.dot_chart("dots", ["a", "b", "c", "d"], dots, y_range=(0, 1)),
    ):
        arrows = [part for part in parsed(chart).iter() if part.get("data-off") is not None]
        told = [part[0].text for part in arrows]
        assert told[0].endswith(": 9.43, off the scale")
        assert told[1].endswith(": −70, off the scale")
    assert len(arrows) == 3
    assert "1e300, off the scale" in chart


def test_names_are_escaped_and_long_ones_cut():
    name = '<script>alert("x")</script>' * 3
    charts = [
        svg.line_chart(name, [svg.Line(name, [0, 1], [0, 1])], [svg.Level(name, 1.0)]),
        svg.dot_chart(name, [name], [svg.Dots(name, [1.0])], [1.0]),
        svg.heat_map(name, [[1.0]], labels=[[name]]),
    ]
    for chart in charts:
        parsed(chart)
        assert "<script" not in chart


def test_ticks_are_round_and_within_their_limits():
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(200):
        low, high = np.sort(rng.normal(size=2) * 10 ** rng.uniform(-6, 6))
        ticks = svg.nice_ticks(low, high)
        span = high - low
        assert 2 <= len(ticks) <= 7
        assert low - 1e-6 * span <= ticks[0]
        assert ticks[-1] <= high + 1e-6 * span
        mantissa = float(f"{ticks[1] - ticks[0]:e}".split("e")[0])
        assert min(abs(mantissa - m) for m in (1, 2, 5, 10)) < 1e-4


def test_colours_of_methods_are_those_of_figures():
    from retvar.plots.style import METHODS as STYLES

    for method in METHODS:
        assert STYLES[method].colour in svg.method_colour(method)


# ---------------------------------------------------------------------- server

TOKEN = "secret-token"


def asked(path, *, kind="http", host="127.0.0.1:7", origin=None):
    """What the guarded server sends, and whether the application was reached."""
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])
        if kind == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": f"{kind}.connect"}

    headers = [(b"host", host.encode())]
    if origin:
        headers.append((b"origin", origin.encode()))
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(server.guarded(app, TOKEN)(scope, receive, send))
    return sent, bool(reached)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/", {}),
        ("/secret", {}),
        (f"/{TOKEN}", {"host": "evil.example"}),
        (f"/{TOKEN}", {"kind": "websocket"}),
        (f"/{TOKEN[:-1]}", {}),
        (f"/{TOKEN}x", {}),
        (f"/{TOKEN}x/", {}),
        (f"/x/{TOKEN}/", {}),
        ("/assets/index.js", {}),
        ("/health", {}),
        ("/ws", {"kind": "websocket"}),
        (f"/{TOKEN}/", {"host": "evil.example"}),
        (f"/{TOKEN}/", {"host": ""}),
        (f"/{TOKEN}/", {"origin": "http://evil.example"}),
        (f"/{TOKEN}/ws", {"kind": "websocket", "origin": "http://127.0.0.1:8"}),
    ],
)
def test_who_lacks_the_token_or_comes_from_elsewhere_gets_a_refusal_only(path, options):
    sent, reached = asked(path, **options)
    assert not reached
    if options.get("kind") == "websocket":
        assert sent == [{"type": "websocket.close", "code": 1008}]
    else:
        assert (sent[0]["status"], sent[1]["body"]) == (403, server.REFUSED)
        assert TOKEN not in repr(sent)


def test_who_has_the_token_is_answered_and_may_load_nothing_from_elsewhere():
    for host in ("127.0.0.1:7", "localhost:7"):
        sent, reached = asked(f"/{TOKEN}/", host=host, origin=f"http://{host}")
        assert reached
        policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
        assert policy.startswith("default-src 'self'")
        assert "http" not in policy
    assert asked(f"/{TOKEN}/ws", kind="websocket")[1]


def test_the_address_without_its_last_stroke_leads_to_the_page():
    sent, reached = asked(f"/{TOKEN}")
    assert not reached
    assert sent[0]["status"] == 307
    assert dict(sent[0]["headers"])[b"location"] == f"/{TOKEN}/".encode()


def test_a_port_in_use_is_named_with_its_remedy():
    with server.listen() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(rv.InputError, match="is in use; give another port") as refused:
            server.listen(port)
    assert (refused.value.field, refused.value.value) == ("--port", port)


def test_the_server_listens_on_loopback_alone():
    with server.listen() as made:
        address, port = made.getsockname()
        assert address == "127.0.0.1"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_the_first_view_can_be_computed_ahead(monkeypatch):
    shown = []
    monkeypatch.setattr(views.LearningView, "show", lambda self, *given: shown.append(given))
    server.warm_up()
    assert shown == [(defaults(views.LearningView(views.Shelf())), 0)]


@pytest.mark.parametrize("case", ["usual", "relative", "homeless", "a file", "no rights"])
def test_settings_of_marimo_lie_in_a_folder_that_can_be_written(case, tmp_path, monkeypatch):
    """In retvar's folder for caches, else in one that is removed when the program ends."""
    here, caches, temporary = (tmp_path / name for name in ("here", "caches", "temporary"))
    for folder in (here, caches, temporary):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(files, "unfinished", set())
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("XDG_CACHE_HOME", "rel" if case == "relative" else str(caches))
    if case in ("relative", "homeless"):
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # the user is unknown
    if case == "homeless":
        monkeypatch.delenv("XDG_CACHE_HOME")
    if case == "a file":
        (caches / "retvar").touch()
    if case == "no rights":

        def refuse(*_):
            raise rv.InputError("folder", "lab", "cannot be written")

        monkeypatch.setattr(server, "require_writable", refuse)
    server._leave_settings_alone()
    chosen = Path(os.environ["XDG_CONFIG_HOME"])
    assert os.environ["XDG_STATE_HOME"] == str(chosen)
    assert not list(here.iterdir())
    assert chosen.is_dir()
    if case == "usual":
        assert chosen == caches / "retvar" / "lab"
    else:
        assert chosen.parent == temporary
        files.remove_unfinished()
    assert not list(temporary.iterdir())


def test_the_address_is_printed_and_the_browser_gets_a_file_that_leads_to_it(tmp_path, monkeypatch):
    class Served:
        url = "http://127.0.0.1:1/token/"
        start = wait = lambda *_: None

    given = []
    monkeypatch.setattr(server, "refuse_missing", lambda: None)
    monkeypatch.setattr(server, "LabServer", lambda _: Served())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: not given.append(url))
    monkeypatch.setenv("DISPLAY", ":0")
    done = CliRunner().invoke(main, ["lab"])
    assert done.exit_code == 0
    assert done.stdout == f"retvar lab: {Served.url}\n"
    assert done.stderr == "A browser was asked to open the address. Ctrl-C ends the lab.\n"
    assert [url.startswith("file://") and "token" not in url for url in given] == [True]
    assert not list(tmp_path.iterdir())


def test_without_marimo_the_command_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "marimo", None)
    done = CliRunner().invoke(main, ["lab", "--no-browser"])
    assert done.exit_code == 2
    assert 'pip install "retvar[lab]"' in done.output


def test_models_of_the_lab_do_not_import_marimo():
    for name in ("bias", "code", "elements", "learning", "problem", "server", "svg", "views"):
        module = importlib.import_module(f"retvar.lab.{name}")
        assert not hasattr(module, "marimo")
        assert not hasattr(module, "mo")
