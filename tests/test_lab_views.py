"""The views of the editor, the grid world and the frontier, without a page."""

import numpy as np

import retvar as rv
from retvar.lab.editor import example
from retvar.lab.views import LearningView, Shelf
from retvar.lab.world_views import EDITED, VIEWS, EditorView, FrontierView, GridView

SHOP = {"begin": "shop", "policy": "uniform"}


def defaults(view):
    """Values of all controls of a view."""
    chosen = {control.name: control.value for control in view.sources()}
    return chosen | {control.name: control.value for control in view.controls(chosen)}


def test_every_view_shows_something_at_first_with_code_that_compiles():
    for make in VIEWS:
        view = make(Shelf())
        screen = view.show(defaults(view), 0)
        assert screen.charts
        assert screen.sentences
        compile(screen.code, view.title, "exec")


def test_what_is_typed_is_taken_and_offered_to_other_views():
    view = EditorView(Shelf())
    view.take({"edges/3/reward": "4", "settings//gamma": "0.5"})
    screen = view.show(SHOP, 0)
    mdp = view.shelf.find(EDITED).mdp
    assert mdp == view.draft.mdp
    assert screen.rows[0][:2] == view.draft.answers()[0][:2]
    made: dict = {"rv": rv}
    exec(view.shelf.find(EDITED).code, made)
    assert made["mdp"] == mdp
    assert set(screen.exports) == {"mdp.toml", "mdp.json"}


def test_a_look_at_the_editor_leaves_the_domains_of_other_views_alone():
    shelf = Shelf()
    first = LearningView(shelf).sources()[0].value
    view = EditorView(shelf)
    view.take(view.discounts({}))  # the page takes over what fields hold
    view.show(SHOP, 0)
    assert LearningView(shelf).sources()[0].value == first
    assert EDITED in LearningView(shelf).sources()[0].options
    view.take({"edges/3/reward": "4"})
    view.show(SHOP, 0)
    assert LearningView(shelf).sources()[0].value == EDITED


def test_a_table_with_errors_leaves_the_last_good_mdp_on_the_shelf():
    view = EditorView(Shelf())
    view.show(SHOP, 0)
    good = view.shelf.find(EDITED)
    view.take({"edges/0/reward": "x"})
    screen = view.show(SHOP, 0)
    assert screen.charts == []
    assert screen.code == ""
    assert view.shelf.find(EDITED) is good


def test_another_mdp_on_the_shelf_is_not_mistaken_for_the_one_before():
    view = EditorView(Shelf())
    for reward in ("1", "2", "3"):
        view.take({"edges/0/reward": reward})
        view.show(SHOP, 0)
        assert view.shelf.find(EDITED, lam=0.5).mdp == view.draft.mdp.replace(lam=0.5)


def test_edits_survive_another_tab_and_end_with_another_beginning():
    view = EditorView(Shelf())
    view.add()
    view.fields(SHOP)
    assert len(view.draft.rows) == 6
    view.remove(5)
    view.take({"edges/5/reward": "1"})  # from a field of a row that is gone
    assert view.draft == example()
    view.fields({"begin": "chain"})
    assert view.draft.states == ["s0", "s1", "s2", "s3"]
    assert view.sources()[0].value == "chain"


def test_fields_of_states_follow_the_names_that_are_typed():
    view = EditorView(Shelf())
    found = view.discounts({"edges/3/state": "void", "edges/4/state": "void"})
    assert {key.split("/")[1] for key in found} == {"full", "void"}


def test_a_grid_world_goes_on_and_begins_again_when_it_must():
    view = GridView(Shelf())
    values = defaults(view)
    first = view.model(values, 300)
    assert view.model(values, 500) is first
    assert first.steps == 500
    again = view.model(values, 300)  # back to an earlier step
    assert again is not first
    assert again.steps == 300
    other = view.model({**values, "alpha": 0.5}, 300)
    assert other.settings.alpha == 0.5
    np.testing.assert_array_equal(other.visits, again.visits)  # the same experience


def test_the_frontier_of_an_edited_mdp_is_searched_again_after_an_edit():
    shelf = Shelf()
    editor, view = EditorView(shelf), FrontierView(shelf)
    assert EDITED not in view.sources()[0].options
    editor.show(SHOP, 0)
    assert EDITED in view.sources()[0].options
    first = view.model(EDITED)
    assert view.model(EDITED) is first
    editor.take({"edges/2/reward": "1.9"})
    editor.show(SHOP, 0)
    assert view.model(EDITED).neutral.mean > first.neutral.mean


def test_without_a_penalty_the_first_policy_is_chosen():
    view = FrontierView(Shelf())
    values = defaults(view)
    screen = view.show(values, 0)
    assert [row[1] for row in screen.rows].count("chosen") == 1
    assert screen.rows[0][1] == "chosen"
