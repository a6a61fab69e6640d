"""Figures of MDPs and solutions: their content, no overlaps, complete files."""

from __future__ import annotations

import os
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.transforms import Bbox

import retvar as rv
from retvar import plots
from retvar.errors import InputError
from retvar.plots.graph_edges import bezier_points

DRAWN = {
    "chain": rv.domains.chain,
    "complex-mdp": rv.domains.complex_mdp,
    "random-walk": lambda: rv.domains.random_walk(6),
    "random-mdp": lambda: rv.domains.random_mdp(5, 2, 2),
    "lake": lambda: rv.domains.from_gymnasium("FrozenLake-v1", gamma=0.99),
}


def drawn(figure: Figure) -> Axes:
    FigureCanvasAgg(figure).draw()
    return figure.axes[0]


def arrows(ax: Axes) -> dict[str, np.ndarray]:
    """Points along each edge's arrow, by the name of the edge."""
    return {
        patch.get_gid(): bezier_points(patch._path_original.vertices, np.linspace(0, 1, 50))
        for patch in ax.patches
        if (patch.get_gid() or "").startswith("edge-")
    }


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def label_boxes(ax: Axes) -> list[Bbox]:
    """Boxes of the text at arrows, in pixels, without the white around it."""
    renderer = ax.figure.canvas.get_renderer()
    labels = [text for text in ax.texts if text.get_gid() == "label"]
    for label in labels:
        label.set_bbox(None)
    return [label.get_window_extent(renderer) for label in labels]


def touches(label: Bbox, node: Bbox, circle: bool) -> bool:
    away = np.abs(np.mean(label.get_points(), axis=0) - np.mean(node.get_points(), axis=0))
    gap = np.maximum(away - [label.width / 2, label.height / 2], 0)
    return bool(np.hypot(*gap) < node.width / 2) if circle else label.overlaps(node)


# ---------------------------------------------------------------------- the graph


def test_every_edge_of_the_complex_mdp_has_its_own_arrow():
    mdp = rv.domains.complex_mdp()
    names = arrows(drawn(plots.draw_mdp(mdp)))
    assert sorted(names) == sorted(f"edge-{i}" for i in range(mdp.edges.state.size))


@pytest.mark.parametrize("name", ["complex-mdp", "random-walk", "random-mdp"])
def test_edges_with_equal_endpoints_do_not_coincide(name):
    """Also those in opposite directions: their middles are well apart."""
    mdp = DRAWN[name]()
    ways = arrows(drawn(plots.draw_mdp(mdp)))
    e = mdp.edges
    ends = {f"edge-{i}": {int(e.state[i]), int(e.next_state[i])} for i in range(e.state.size)}
    for one, other in combinations(ways, 2):
        if ends[one] == ends[other]:
            away = np.hypot(*(ways[one][:, None] - ways[other][None]).transpose(2, 0, 1))
            assert away[25].min() > 0.1  # inches


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (5, 2, 2)])
def test_loops_of_one_state_keep_apart(sizes):
    mdp = rv.domains.random_mdp(*sizes)
    ways = arrows(drawn(plots.draw_mdp(mdp)))
    state, after = mdp.edges.state, mdp.edges.next_state
    loops = [f"edge-{i}" for i in np.flatnonzero(state == after)]
    same = [(a, b) for a, b in combinations(loops, 2) if state[int(a[5:])] == state[int(b[5:])]]
    assert same
    for one, other in same:
        away = np.hypot(*(ways[one][:, None] - ways[other][None]).transpose(2, 0, 1))
        assert away.min() > 0.02  # inches; they never cross


@pytest.mark.parametrize("name", DRAWN)
def test_labels_overlap_neither_each_other_nor_nodes(name):
    ax = drawn(plots.draw_mdp(DRAWN[name]()))
    labels = label_boxes(ax)
    nodes = [p for p in ax.patches if (p.get_gid() or "").startswith(("state-", "end"))]
    assert labels
    assert not any(a.overlaps(b) for a, b in combinations(labels, 2))
    for label in labels:
        for node in nodes:
            assert not touches(label, node.get_window_extent(), isinstance(node, Circle))


@pytest.mark.parametrize("name", ["chain", "complex-mdp", "random-walk"])
def test_labels_leave_arrowheads_free(name):
    ax = drawn(plots.draw_mdp(DRAWN[name]()))
    labels = label_boxes(ax)
    for way in arrows(ax).values():
        x, y = ax.transData.transform(way[-1])
        assert not any(box.contains(x, y) for box in labels)


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_is_cut_off(name):
    figure = plots.draw_mdp(DRAWN[name]())
    ax = drawn(figure)
    page = figure.bbox.padded(1)
    things = [*ax.texts, *ax.patches]
    boxes = [thing.get_window_extent(figure.canvas.get_renderer()) for thing in things]
    for box in boxes:
        assert page.x0 <= box.x0
        assert page.y0 <= box.y0
        assert box.x1 <= page.x1
        assert box.y1 <= page.y1


def test_state_names_appear():
    mdp = rv.domains.complex_mdp()
    assert set(mdp.state_names) <= set(texts(drawn(plots.draw_mdp(mdp))))


def test_labels_give_probabilities_of_all_policies_and_rewards_with_a_real_minus():
    assert "μ 0.2  π 0.4\nr = −1" in texts(drawn(plots.draw_mdp(rv.domains.complex_mdp())))


def test_one_policy_gives_plain_numbers_and_no_arrows_that_it_never_takes():
    mdp = rv.domains.complex_mdp()
    ax = drawn(plots.draw_mdp(mdp, "pi"))
    assert "0.4\nr = −1" in texts(ax)
    assert len(arrows(ax)) == np.sum(mdp.policy("pi").probabilities > 0) == 13


def test_policies_can_be_listed_by_name():
    shown = texts(drawn(plots.draw_mdp(rv.domains.complex_mdp(), ["pi", "mu"])))
    assert "π 0.4  μ 0.2\nr = −1" in shown


def test_noise_of_rewards_is_written():
    assert "1\nr = 1 ± 1" in texts(drawn(plots.draw_mdp(rv.domains.chain())))


def test_gamma_and_lambda_shared_by_all_states_are_written_once_below():
    shown = texts(drawn(plots.draw_mdp(rv.domains.chain(gamma=0.5, lam=0.9))))
    assert "γ = 0.5, λ = 0.9" in shown
    assert not any("γ=" in text for text in shown)


def test_gamma_and_lambda_are_written_in_states_that_differ():
    assert "γ=0.4\nλ=0.9" in texts(drawn(plots.draw_mdp(rv.domains.complex_mdp())))


def test_gamma_is_written_at_edges_if_edges_into_one_state_differ():
    mdp = rv.MDP.from_edges(
        [
            rv.Edge("a", "x", "b", gamma=0.3),
            rv.Edge("a", "y", "b", gamma=0.9),
            rv.Edge("b", "x", "a", gamma=0.5),
        ]
    )
    assert "0.5\nr = 0\nγ = 0.9" in texts(drawn(plots.draw_mdp(mdp)))


def test_ends_are_squares_and_the_start_is_marked():
    ax = drawn(plots.draw_mdp(rv.domains.chain()))
    names = [patch.get_gid() for patch in ax.patches]
    assert names.count("end") == names.count("start") == 1


def test_a_start_anywhere_is_not_marked():
    mdp = rv.MDP.from_dense([[[0, 1]], [[1, 0]]], [0.0, 1.0], gamma=0.5, start=[0.5, 0.5])
    assert "start" not in [patch.get_gid() for patch in drawn(plots.draw_mdp(mdp)).patches]


def test_many_equal_edges_are_merged_and_shared_texts_are_written_once():
    ax = drawn(plots.draw_mdp(DRAWN["lake"]()))
    assert len(arrows(ax)) < 60
    assert any("p = 0.25 and r = 0 where not written" in text for text in texts(ax))


def test_many_edges_with_rewards_of_their_own_become_one_arrow():
    rows = [("a", k, "b", 1.0, float(k)) for k in range(5)] + [("b", 0, "a")]
    ax = drawn(plots.draw_mdp(rv.MDP.from_edges(rows, gamma=0.9, actions=5)))
    assert "1\n5 edges" in texts(ax)


@pytest.mark.parametrize(
    "mdp",
    [
        rv.MDP.from_edges([("a", "x", "a")], gamma=0.5),
        rv.MDP.from_edges([("a", "x", "end")], gamma=0.5),
        rv.MDP.from_edges([("a", "x", "b"), ("b", "x", "a")], gamma=0.5),
        rv.MDP.from_edges([("a", "x", "a"), ("b", "x", "b")], gamma=0.5),
        rv.MDP.from_edges(
            [("a", "x", "b", 0.5), ("a", "x", "c", 0.5), ("b", "x", "end"), ("c", "x", "end")],
            gamma=0.5,
        ),
        rv.domains.random_mdp(12, 1, 2),
        rv.MDP.from_edges(
            [("a", "x", "b"), ("b", "x", "a")], gamma=0.5, positions=[(0, 0), (0, 0)]
        ),
    ],
    ids=["loop", "end", "pair", "apart", "branches", "many", "same place"],
)
def test_small_and_odd_mdps_can_be_drawn(mdp):
    ax = drawn(plots.draw_mdp(mdp))
    assert len(arrows(ax)) == mdp.edges.state.size


def test_states_without_positions_run_from_left_to_right():
    """A chain with steps back is one straight line, from the first state to the last."""
    steps = [(f"s{k}", "x", f"s{k + d}", 0.5) for k in range(1, 4) for d in (-1, 1)]
    mdp = rv.MDP.from_edges([("s0", "x", "s1"), *steps, ("s4", "x", "s3")], gamma=0.5)
    ax = drawn(plots.draw_mdp(mdp))
    names = [f"s{k}" for k in range(5)]
    x, y = np.transpose([text.get_position() for text in ax.texts if text.get_text() in names])
    assert [text.get_text() for text in ax.texts if text.get_text() in names] == names
    assert np.diff(x).min() > 0.5  # inches
    np.testing.assert_allclose(y, y[0], atol=0.01)


def test_an_mdp_can_be_drawn_into_axes_of_another_figure():
    figure = Figure(figsize=(3, 2))
    left, _ = figure.subplots(1, 2)
    assert plots.draw_mdp(rv.domains.chain(), ax=left) is figure
    assert len(arrows(drawn(figure))) == 4


def test_drawing_twice_gives_the_same_picture(tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.save(plots.draw_mdp(rv.domains.random_mdp(5, 2, 2)), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def note_of(figure: Figure) -> str:
    (ax,) = figure.axes[:1]
    found = [t.get_text() for t in [*ax.texts, ax.title, ax._left_title] if t.get_gid() == "note"]
    return " ".join(found[0].split())


def test_many_states_have_a_circle_each_apart_and_an_arrow_for_each_move():
    """From 31 states on; every circle has its name, and no two of them touch."""
    mdp = rv.domains.random_mdp(40, 2, 2)
    figure = plots.draw_mdp(mdp)
    ax = drawn(figure)
    circles = [p for p in ax.patches if (p.get_gid() or "").startswith("state-")]
    assert len(circles) == 40
    gaps = [
        np.hypot(*np.subtract(a.center, b.center)) - a.radius - b.radius
        for a, b in combinations(circles, 2)
    ]
    assert min(gaps) > 0.1
    assert {mdp.state_name(s) for s in range(40)} <= set(texts(ax))
    e, taken = mdp.edges, mdp.policy().probabilities
    moves = {(s, t) for s, a, t in zip(e.state, e.action, e.next_state, strict=True)
             if taken[s, a] > 0 and s != t}  # fmt: skip
    assert {p.get_gid() for p in ax.patches if (p.get_gid() or "").startswith("edge-")} == {
        f"edge-{s}-{t}" for s, t in moves
    }
    assert note_of(figure).startswith("40 states, so without labels")
    assert max(figure.get_size_inches()) < 15


def test_a_long_line_of_states_is_folded_and_neighbours_stay_neighbours():
    ax = drawn(plots.draw_mdp(rv.domains.random_walk(90)))
    centre = {p.get_gid(): np.array(p.center) for p in ax.patches if isinstance(p, Circle)}
    away = [np.hypot(*(centre[f"state-{k}"] - centre[f"state-{k + 1}"])) for k in range(89)]
    np.testing.assert_allclose(away, away[0])
    assert ax.figure.get_figwidth() < 13


def test_hundreds_of_states_are_a_matrix_of_their_probabilities():
    figure = plots.draw_mdp(rv.domains.random_walk(101))
    drawn(figure)
    cells = np.ma.filled(figure.axes[0].images[0].get_array(), 0.0)
    expected = np.diag(np.full(100, 0.7), 1) + np.diag(np.full(100, 0.3), -1)
    expected[0, 0] = 0.3
    inside = np.ones(cells.shape, dtype=bool)
    inside[-1] = False
    np.testing.assert_allclose(cells[inside], expected[inside])
    ends = figure.axes[0].child_axes[0].images[0].get_array()
    np.testing.assert_allclose(cells.sum(axis=1) + np.ma.filled(ends, 0.0).ravel(), 1.0)
    assert note_of(figure) == "101 states, so a matrix: where each leads"
    coarse = plots.draw_mdp(rv.domains.random_walk(600))
    assert note_of(coarse).endswith("a cell stands for 3 states")
    table = np.ma.filled(coarse.axes[0].images[0].get_array(), 0.0)
    np.testing.assert_allclose(table[50, [49, 50, 51]], [0.1, 2 / 3, 0.7 / 3])


def test_a_figure_of_many_states_fits_given_axes_and_names_its_policy():
    figure = Figure(figsize=(4, 4))
    for mdp in (rv.domains.random_mdp(40, 2, 2), rv.domains.random_mdp(120, 2, 2)):
        ax = figure.add_subplot()
        assert plots.draw_mdp(mdp, "behaviour", ax) is figure
        words = next(t.get_text() for t in [*ax.texts, ax._left_title] if t.get_gid() == "note")
        assert "under behaviour" in " ".join(words.split())
        figure.clear()


def test_grid_worlds_give_maps_of_value_and_standard_deviation():
    solution = rv.solve(DRAWN["lake"]())
    figure = plots.solution(solution)
    maps = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in maps] == ["value", "standard deviation"]
    for ax, field in zip(maps, (solution.value, solution.std), strict=True):
        shown = np.asarray(ax.images[0].get_array())
        np.testing.assert_array_equal(np.flipud(shown).ravel(), field)
        assert len(ax.texts) == 16


def test_other_mdps_give_a_dot_with_bars_per_state():
    solution = rv.solve(rv.domains.complex_mdp())
    ax = drawn(plots.solution(solution))
    assert ax.get_title(loc="left") == "complex-mdp"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(solution.mdp.state_names)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), solution.value)
    one = ax.collections[0].get_segments()
    np.testing.assert_allclose([s[1, 1] - s[0, 1] for s in one], 2 * solution.std)


def test_chosen_states_are_drawn_in_the_order_given():
    solution = rv.solve(rv.domains.chain())
    ax = drawn(plots.solution(solution, states=["s2", 0]))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), solution.value[[2, 0]])


def test_no_states_are_refused():
    with pytest.raises(rv.InputError, match="at least one"):
        plots.solution(rv.solve(rv.domains.chain()), states=[])


def test_a_mean_that_is_not_the_value_is_drawn_next_to_it():
    ax = drawn(plots.solution(rv.solve(rv.domains.chain(), value=[3.0, 3, 3, 3])))
    assert [line.get_label() for line in ax.lines][:2] == ["mean", "true value"]


def test_skewness_and_kurtosis_have_a_panel_or_maps_of_their_own():
    solution = rv.solve(rv.domains.complex_mdp(), order=4)
    figure = plots.solution(solution)
    drawn(figure)
    above, below = figure.axes
    by_label = {line.get_label(): line.get_ydata() for line in below.lines}
    np.testing.assert_array_equal(by_label["skewness"], solution.skewness)
    np.testing.assert_array_equal(by_label["excess kurtosis"], solution.kurtosis)
    assert (above.get_ylabel(), above.get_xlabel(), below.get_xlabel()) == ("return", "", "state")
    figure = plots.solution(rv.solve(DRAWN["lake"](), order=3))
    titles = [ax.get_title() for ax in figure.axes if ax.images]
    assert titles == ["value", "standard deviation", "skewness"]


def test_an_infinite_standard_deviation_is_drawn_as_such():
    """A loop whose ratios grow, beside a state that ends; in a row and on a grid."""
    edges = [(s, a, s, 1.0, 1.0 - a) for s in (0, 1) for a in (0, 1)]
    edges += [(s, a, "end", 1.0, 1.0 + a) for s in (2, 3) for a in (0, 1)]
    policies = {"pi": np.tile([0.9, 0.1], (4, 1)), "mu": np.full((4, 2), 0.5)}
    mdp = rv.MDP.from_edges(edges, gamma=0.95, policies=policies)
    solution = rv.solve(mdp, "pi", "mu", "off_policy_return", order=3)
    ax = drawn(plots.solution(solution))
    ring = next(line for line in ax.lines if line.get_label() == "std infinite")
    assert ring.get_xdata().tolist() == [0, 1]
    places = mdp.replace(positions=[[0, 0], [1, 0], [0, 1], [1, 1]])
    figure = plots.solution(rv.solve(places, "pi", "mu", "off_policy_return"))
    drawn(figure)
    spread = next(ax for ax in figure.axes if ax.get_title() == "standard deviation")
    assert [text.get_text() for text in spread.texts][:2] == ["∞", "∞"]


def test_many_states_give_a_line_with_bands_and_few_ticks():
    ax = drawn(plots.solution(rv.solve(rv.domains.random_mdp(300))))
    assert ax.lines[0].get_linestyle() == "-"
    assert len(ax.collections) == 2
    assert len(ax.get_xticks()) < 40


def test_the_legend_does_not_cover_data():
    figure = plots.solution(rv.solve(rv.domains.chain()))
    ax = drawn(figure)
    assert not figure.legends[0].get_window_extent().overlaps(ax.get_window_extent())


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_saving_twice_gives_identical_bytes(tmp_path, suffix):
    figure = plots.solution(rv.solve(rv.domains.chain()))
    for name in ("a", "b"):
        plots.save(figure, tmp_path / (name + suffix))
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_unknown_suffixes_are_refused_by_name(tmp_path):
    figure = plots.solution(rv.solve(rv.domains.chain()))
    with pytest.raises(rv.InputError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plots.save(figure, tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    figure = plots.solution(rv.solve(rv.domains.chain()))
    path = tmp_path / "a.png"
    path.write_text("old")

    def fail(_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(InputError, match="cannot be written: disk full"):
            plots.save(figure, path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    assert path.read_text() == "old"


def test_figures_leave_pyplot_and_the_settings_of_matplotlib_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.draw_mdp(rv.domains.chain())
    assert dict(matplotlib.rcParams) == before
