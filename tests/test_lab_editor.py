"""The editor of the lab: cells, errors at cells, exact answers, drawings and exports."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import retvar as rv
from retvar.errors import InputError
from retvar.lab.editor import (
    COLUMNS,
    DISCOUNTS,
    MOST_ROWS,
    Editor,
    Row,
    discount_table,
    editor_table,
    example,
)
from retvar.lab.mdp_graph import MOST_DRAWN, graph_svg
from retvar.mdp.toml import parse_mdp

CHAIN = Editor.from_mdp(rv.domains.chain())
MDPS = [
    rv.domains.chain(),
    rv.domains.complex_mdp(),
    rv.domains.random_walk(6),
    rv.domains.random_mdp(5, 2, 2, seed=3, gamma=0.9, ends=0.3),
]


def places(editor):
    return [error[:3] for error in editor.errors]


# ---------------------------------------------------------------------- errors at cells


@pytest.mark.parametrize(
    ("column", "text", "remedy"),
    [
        ("probability", "lots", "must be a number"),
        ("probability", "", "give a number"),
        ("probability", "nan", "finite"),
        ("probability", "1.5", r"\[0, 1\]"),
        ("probability", "0,6", "write a point, not a comma"),
        ("reward", "1e999", "finite"),
        ("reward", "inf", "finite"),
        ("reward", "1/0", "must be a number"),
        ("reward_std", "-1", "must not be negative"),
        ("state", " ", "give a name"),
        ("state", "end", "reserved"),
        ("action", "", "give a name"),
        ("next_state", "", "or end where the episode ends"),
        ("next_state", "ful", r"did you mean full\? no row leaves ful"),
    ],
)
def test_a_bad_cell_is_named_with_its_row_column_and_remedy(column, text, remedy):
    editor = example().edit(0, column, text)
    found = [e for e in editor.errors if e[:3] == ("edges", 0, column)]
    assert len(found) == 1
    assert re.search(remedy, found[0].remedy)
    assert found[0].value == text
    assert (editor.mdp, editor.solution) == (None, None)


def test_every_bad_cell_is_named_not_only_the_first():
    editor = (
        example().edit(0, "reward", "x").edit(2, "next_state", "nowhere").edit(4, "reward", "y")
    )
    assert places(editor) == [
        ("edges", 0, "reward"), ("edges", 4, "reward"), ("edges", 2, "next_state"),
    ]  # fmt: skip


def test_probabilities_that_do_not_sum_to_one_say_what_would():
    editor = example().edit(0, "probability", "0.5")
    assert places(editor) == [("edges", 0, "probability"), ("edges", 1, "probability")]
    for error in editor.errors:
        would = re.search(r"(\S+) here would do", error.remedy)[1]
        assert editor.edit(error.row, "probability", would).errors == ()


def test_a_sum_is_not_judged_while_one_of_its_numbers_is_missing():
    assert places(example().edit(0, "probability", "x")) == [("edges", 0, "probability")]


def test_chains_that_never_end_are_named_where_they_go_on():
    endless = replace(example(), gamma="1").edit(4, "next_state", "empty")
    assert places(endless) == [("edges", k, "next_state") for k in range(5)]
    assert replace(endless, gamma="0.9").errors == ()
    assert endless.discount("full", "gamma", "0.9").errors == ()


def test_only_the_states_that_never_end_are_named():
    trap = replace(example(), gamma="1").add(Row("empty", "hide", "cave"))
    trap = trap.add(Row("cave", "stay", "cave"))
    assert places(trap) == [("edges", 6, "next_state")]


def test_settings_and_discounts_have_errors_of_their_own():
    editor = replace(example(), gamma="1.2", lam="much", start="ful", policy="best")
    editor = editor.discount("empty", "gamma", "−1")
    assert set(places(editor)) == {
        ("settings", "", "gamma"), ("settings", "", "lam"), ("settings", "", "start"),
        ("settings", "", "policy"), ("states", "empty", "gamma"),
    }  # fmt: skip


def test_an_empty_table_says_so_and_a_row_can_be_added():
    empty = example()
    for _ in range(5):
        empty = empty.remove(0)
    assert "add a row" in empty.errors[0].remedy
    assert replace(empty.add(), start="").errors == ()


def test_numbers_that_overflow_are_an_error_and_no_answer():
    editor = example().edit(0, "reward", "1e308")
    assert editor.errors
    assert editor.solution is None


def test_rows_and_columns_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="row"):
        example().edit(5, "reward", "1")
    with pytest.raises(InputError, match="column"):
        example().edit(0, "rewards", "1")
    with pytest.raises(InputError, match="rows"):
        replace(example(), rows=(Row("a", "go", "end"),) * MOST_ROWS).add()
    with pytest.raises(InputError, match="mdp"):
        Editor.from_mdp(rv.domains.windy_cliff())


# ---------------------------------------------------------------------- the MDP and its answers


@pytest.mark.parametrize("mdp", MDPS, ids=lambda mdp: mdp.name)
def test_the_table_of_an_mdp_has_its_exact_answers(mdp):
    editor = Editor.from_mdp(mdp)
    truth = rv.solve(mdp)
    assert editor.errors == ()
    np.testing.assert_allclose(editor.solution.value, truth.value, rtol=1e-12)
    np.testing.assert_allclose(editor.solution.std, truth.std, rtol=1e-12)


def test_the_answers_are_those_of_an_oracle_that_starts_from_what_was_typed():
    """The mean and the variance of the return of `shop`, from Bellman's equations by hand."""
    editor = replace(example(), lam="1")
    p, r, s = np.array([0.3, 0.2, 0.5]), np.array([2.0, 3.0, 0.5]), np.array([0.5, 0.5, 0.0])
    to, g = [0, 1, 0], 0.95
    P = np.array([[p[0] + p[2], p[1]], [0.9, 0.0]])
    j = np.linalg.solve(np.eye(2) - g * P, [p @ r, -0.9])
    second = [
        p @ (r**2 + s**2 + 2 * g * r * j[to]),
        0.9 * (1 - 2 * g * j[0]),
    ]
    m = np.linalg.solve(np.eye(2) - g**2 * P, second)
    np.testing.assert_allclose(editor.solution.value, j, rtol=1e-12)
    np.testing.assert_allclose(editor.solution.std, np.sqrt(m - j**2), rtol=1e-12)


def test_named_policies_stay_as_long_as_they_fit():
    editor = Editor.from_mdp(rv.domains.complex_mdp())
    assert list(editor.mdp.policies) == ["mu", "pi"]
    other = replace(editor, policy="pi")
    np.testing.assert_allclose(other.solution.value, rv.solve(rv.domains.complex_mdp(), "pi").value)
    grown = editor.add(Row("s9", "0", "s0"))
    assert list(replace(grown, policy="uniform").mdp.policies) == ["uniform"]
    assert "no longer fit" in " ".join(replace(grown, policy="uniform").remarks)
    assert places(grown) == [("settings", "", "policy")]


def test_fractions_are_numbers():
    assert example().edit(0, "probability", "3/5").mdp == example().mdp


# ---------------------------------------------------------------------- exports


@pytest.mark.parametrize("mdp", [*MDPS, example().mdp], ids=lambda mdp: mdp.name)
def test_python_toml_and_json_give_the_mdp_of_the_table(mdp):
    editor = Editor.from_mdp(mdp)
    made: dict = {}
    exec(editor.code().replace("print(", "shown = ("), made)
    assert made["mdp"] == editor.mdp
    np.testing.assert_array_equal(made["shown"].value, editor.solution.value)
    assert parse_mdp(editor.toml(), "mdp.toml") == editor.mdp
    assert rv.MDP.from_edges(**json.loads(editor.json())) == editor.mdp


def test_python_asks_for_the_policy_that_was_chosen():
    editor = replace(example(), policy="greedy")
    made: dict = {}
    exec(editor.code().replace("print(", "shown = ("), made)
    np.testing.assert_array_equal(made["shown"].value, editor.solution.value)


def test_discounts_of_states_are_exported():
    editor = example().discount("empty", "gamma", "0.5").discount("full", "lam", "0")
    assert parse_mdp(editor.toml(), "x").gamma.tolist() == [0.95, 0.5]
    assert editor.mdp.lam.tolist() == [0.0, 0.9]
    made: dict = {}
    exec(editor.code().replace("print(", "shown = ("), made)
    assert made["mdp"] == editor.mdp


def test_nothing_is_exported_while_a_cell_is_wrong():
    broken = example().edit(0, "reward", "x")
    for export in (broken.toml, broken.json, broken.code):
        with pytest.raises(InputError, match="reward"):
            export()


def test_hostile_names_are_escaped_everywhere_and_survive_exports():
    name = '<script>"\n\\'
    editor = Editor((Row(name, "<b>", "end", "1", "1"), Row("b", "<b>", name)))
    fields = {(k, column): "<i/>" for k in range(2) for column in COLUMNS}
    cells = {(s, column): "<i/>" for s in editor.states for column in DISCOUNTS}
    shown = [
        editor.graph(), editor.chart(), editor_table(editor, fields, ["", ""]),
        discount_table(editor, cells),
        editor_table(editor.edit(0, "next_state", "<script>"), fields, ["", ""]),
    ]  # fmt: skip
    assert all("<script" not in page and "<b>" not in page for page in shown)
    made: dict = {}
    exec(editor.code().replace("print(", "shown = ("), made)
    assert made["mdp"] == editor.mdp
    assert parse_mdp(editor.toml(), "x") == editor.mdp


# ---------------------------------------------------------------------- what is shown


def test_the_error_stands_in_the_cell_that_is_wrong():
    editor = example().edit(3, "reward", "much")
    fields = {(k, column): f"<i>{k} {column}</i>" for k in range(5) for column in COLUMNS}
    shown = editor_table(editor, fields, [""] * 5)
    cells = re.findall(r'<td class="rv-wrong".*?</td>', shown)
    assert len(cells) == 1
    assert "<i>3 reward</i>" in cells[0]
    assert "must be a number" in cells[0]
    assert shown.count("<td") == 5 * 7


def test_right_and_wrong_tables_have_the_same_elements():
    """So that a page which draws a table again keeps the field that is being typed in."""
    fields = {(k, column): "<i/>" for k in range(5) for column in COLUMNS}
    tags = [
        re.findall(r"<(\w+)", editor_table(editor, fields, [""] * 5))
        for editor in (example(), example().edit(0, "reward", "x"))
    ]
    assert tags[0] == tags[1]


@pytest.mark.parametrize("mdp", MDPS, ids=lambda mdp: mdp.name)
def test_the_graph_has_a_circle_for_each_state_and_says_what_each_arrow_is(mdp):
    image = ElementTree.fromstring(graph_svg(mdp))
    space = "{http://www.w3.org/2000/svg}"
    assert len(image.findall(f".//{space}circle")) == mdp.n_states
    arrows = [g.get("data-arrow") for g in image.iter(f"{space}g") if g.get("data-arrow")]
    edges = [int(k) for arrow in arrows if arrow != "start" for k in arrow.split("-")]
    pi = mdp.policy().probabilities
    taken = np.flatnonzero(pi[mdp.edges.state, mdp.edges.action] * mdp.edges.probability)
    assert sorted(edges) == taken.tolist()
    width, height = (float(x) for x in image.get("viewBox").split()[2:])
    for circle in image.findall(f".//{space}circle"):
        x, y, r = (float(circle.get(name)) for name in ("cx", "cy", "r"))
        assert r <= x <= width - r
        assert r <= y <= height - r


def test_circles_of_a_graph_do_not_overlap():
    image = ElementTree.fromstring(graph_svg(rv.domains.random_mdp(10, 2, 2, seed=1, gamma=0.9)))
    at = [
        [float(c.get(name)) for name in ("cx", "cy", "r")]
        for c in image.iter("{http://www.w3.org/2000/svg}circle")
    ]
    for i, (x, y, r) in enumerate(at):
        assert all(np.hypot(x - u, y - v) > r + s for u, v, s in at[:i])


def test_too_many_states_are_a_sentence():
    mdp = rv.domains.random_walk(MOST_DRAWN + 1)
    assert "too many to draw" in graph_svg(mdp)


def test_the_graph_shows_the_exact_answers_and_follows_an_edit():
    before, after = example(), example().edit(0, "reward", "20")
    assert "±" in before.graph()
    assert before.graph() != after.graph()
    assert "needs attention" in example().edit(0, "reward", "x").graph()


def test_an_edited_chain_has_the_answers_that_follow_by_hand():
    editor = (
        CHAIN.edit(2, "reward", "3").edit(1, "reward_std", "0.25").discount("s2", "gamma", "0.5")
    )
    stds, rewards, gammas = [1, 0.25, 1, 1], [1, 1, 3, 1], [1, 0.5, 1, 0]
    j = np.zeros(5)
    for k in reversed(range(4)):
        j[k] = rewards[k] + gammas[k] * j[k + 1]
    v = np.zeros(5)
    lam = 0.9
    for k in reversed(range(4)):
        v[k] = stds[k] ** 2 + (gammas[k] * lam) ** 2 * v[k + 1]
    np.testing.assert_allclose(editor.solution.value, j[:4])
    np.testing.assert_allclose(editor.solution.variance, v[:4])


def test_a_reward_whose_square_is_no_number_is_named_at_its_field():
    for text in ("1e200", "-1e308", "1e308"):
        (wrong,) = example().edit(0, "reward", text).errors
        assert wrong[:3] == ("edges", 0, "reward")
        assert "too large" in wrong.remedy


def test_rows_with_probability_0_are_no_edges():
    more = example().add()
    assert len(more.rows) == 6
    assert more.status().startswith("2 states, 5 edges")
    assert more.mdp == example().mdp
    assert more.code() == example().code()
