"""The frontier of the lab: the slider chooses the best policy found, and says what it costs."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import retvar as rv
from retvar.errors import InputError
from retvar.lab.editor import Editor, example
from retvar.lab.frontier import DOMAINS, FrontierChoices, penalties_of

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def cliff():
    return FrontierChoices.search(*DOMAINS["windy-cliff"])


@pytest.fixture(scope="module")
def bet():
    return FrontierChoices.search(*DOMAINS["a bet"])


def test_the_choice_is_the_best_of_all_policies_found_at_every_position(cliff):
    for c in cliff.slider:
        best = max(p.mean - c * p.variance for p in cliff.found)
        point = cliff.at(c)
        assert point.mean - c * point.variance == pytest.approx(best, abs=1e-9)


def test_at_a_change_both_policies_are_equally_good(cliff):
    for before, after in zip(cliff.choices, cliff.choices[1:], strict=False):
        one, other = (p.mean - before.high * p.variance for p in (before.point, after.point))
        assert before.high == after.low
        assert one == pytest.approx(other, abs=1e-9)
        assert after.point.variance < before.point.variance
        assert after.point.mean < before.point.mean


def test_changes_of_a_bet_follow_by_hand(bet):
    """Means 1.1, 1.05, 1 and variances 1.21, 0.2025, 0 cross where c = Δmean / Δvariance."""
    crossings = [0.05 / (1.21 - 0.2025), 0.05 / 0.2025]
    np.testing.assert_allclose([c.low for c in bet.choices], [0.0, *crossings])
    assert [c.point.std for c in bet.choices] == pytest.approx([1.1, 0.45, 0.0])


def test_the_copied_python_chooses_the_same_policy(cliff, bet):
    for view, c in ((cliff, 0.13), (bet, 0.0), (bet, bet.slider[-1])):
        made: dict = {}
        code = view.code(c).replace("print(", "shown = (").replace("rv.plots.save(", "drawn = (")
        exec(code.replace(', sep="\\n")', ")"), made)
        assert made["best"].mean == view.at(c).mean
        np.testing.assert_array_equal(
            made["best"].policy.probabilities, view.at(c).policy.probabilities
        )


@pytest.mark.parametrize("name", DOMAINS)
def test_the_python_of_a_domain_makes_it(name):
    made: dict = {"rv": rv}
    exec(DOMAINS[name].code, made)
    assert made["mdp"] == DOMAINS[name].make()


def test_the_slider_begins_at_no_penalty_and_passes_all_changes(cliff, bet):
    for view in (cliff, bet):
        assert view.slider[0] == 0
        assert view.slider == sorted(set(view.slider))
        assert view.slider[1] < view.choices[1].low
        assert view.slider[-1] >= view.choices[-1].low
        chosen = {id(view.at(c)) for c in view.slider}
        assert len(chosen) >= len(view.choices) - 1  # one may lie between two positions


def test_penalties_scale_with_returns():
    small, large = (
        rv.MDP.from_edges([(0, 0, "end", 0.5, r), (0, 0, "end", 0.5, -r)], gamma=1.0)
        for r in (1.0, 100.0)
    )
    np.testing.assert_allclose(penalties_of(small), 100 * np.array(penalties_of(large)))
    calm = rv.MDP.from_edges([(0, 0, "end", 1.0, 5.0)], gamma=1.0)
    assert np.all(np.isfinite(penalties_of(calm)))


def test_changed_states_are_those_that_the_policies_visit_and_treat_differently(cliff):
    assert cliff.changed(0.0) == []
    names = [cliff.mdp.state_name(s) for s in cliff.changed(0.13)]
    assert "r1c0" in names  # the calmer walk goes one row higher
    one, other = (cliff.at(c).policy.probabilities for c in (0.0, 0.13))
    assert all(np.any(one[s] != other[s]) for s in cliff.changed(0.13))


def test_pictures_show_the_choice(cliff, bet):
    for view in (cliff, bet):
        for c in (0.0, view.slider[-1]):
            chart = ElementTree.fromstring(view.chart(c))
            dots = [dot.get("data-point") for dot in chart.iter(f"{SPACE}circle")]
            assert sorted(dots) == ["chosen", *["other"] * (len(view.choices) - 1)]
            assert ElementTree.fromstring(view.histogram(c)) is not None
    picture = ElementTree.fromstring(cliff.picture(0.13))
    marked = [rect for rect in picture.iter(f"{SPACE}rect") if rect.get("data-changed") is not None]
    assert len(marked) == len(cliff.changed(0.13))
    cells = [g for g in picture.iter(f"{SPACE}g") if g.get("data-cell")]
    assert len(cells) == cliff.mdp.n_states


def test_dots_lie_where_mean_and_std_say(cliff):
    chart = ElementTree.fromstring(cliff.chart(0.0))
    at = [(float(d.get("cx")), float(d.get("cy"))) for d in chart.iter(f"{SPACE}circle")]
    line = next(chart.iter(f"{SPACE}polyline")).get("points").split()
    corners = [tuple(map(float, point.split(","))) for point in line]
    np.testing.assert_allclose(at, corners, atol=0.11)  # as the line that joins them


def test_arrows_point_where_the_policy_goes(cliff):
    """The risky walk goes right along the second row; in SVG y grows downwards."""
    picture = cliff.picture(0.0)
    arrow = re.search(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", picture)
    assert arrow is not None
    final = ElementTree.fromstring(cliff.picture(cliff.slider[-1]))
    path = next(p for p in final.iter(f"{SPACE}path")).get("d")
    x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", path))
    assert x1 > x0  # off the cliff, at once
    assert y0 == y1


def test_the_histogram_has_the_mean_of_the_policy(cliff):
    point = cliff.at(0.13)
    returns = cliff._returns(point)
    error = point.std / np.sqrt(returns.size)
    assert abs(returns.mean() - point.mean) < 5 * error
    assert cliff._returns(point) is returns  # once for each policy


def test_words_say_what_calm_costs(cliff):
    assert cliff.status(0).startswith("The largest mean: −11.87 ± 4.21")
    told = cliff.status(0.13)
    assert "39% less spread for 0.75 less on average" in told
    assert "r1c0" in told


def test_a_policy_that_never_ends_is_told():
    walk = rv.MDP.from_edges(
        [
            ("a", "stay", "a", 1.0, -1.0),
            ("a", "go", "end", 0.5, -4.0),
            ("a", "go", "end", 0.5, 0.0),
        ],
        gamma=0.9,
    )
    view = FrontierChoices.search(walk, "walk")
    assert view.note(0).startswith("Best found")
    assert "Only 0 of the episodes end" in view.note(view.slider[-1])


def test_an_edited_mdp_has_a_frontier_with_code_that_runs():
    editor = example().edit(2, "reward", "1.5")
    view = FrontierChoices.search(editor.mdp, editor.source())
    made: dict = {}
    code = view.code(0.2).replace("print(", "shown = (").replace("rv.plots.save(", "drawn = (")
    exec(code.replace(', sep="\\n")', ")"), made)
    assert made["best"].mean == view.at(0.2).mean
    assert "<svg" in view.picture(0.2)
    assert isinstance(Editor.from_mdp(view.mdp), Editor)


@pytest.mark.parametrize("penalty", [float("nan"), -1.0, "much"])
def test_a_bad_penalty_is_named(bet, penalty):
    with pytest.raises(InputError, match="penalty"):
        bet.at(penalty)
