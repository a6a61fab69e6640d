"""The editor, the grid world and the frontier of `retvar lab` in a real browser.

`make browser` runs this.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

import retvar as rv
from retvar.lab.editor import example
from retvar.lab.frontier import DOMAINS, FrontierChoices
from retvar.lab.grid import GridSettings, GridWorld
from tests.patience import patience

lab_tests = pytest.importorskip("tests.test_browser_lab", reason="playwright: make browser")
from tests.test_browser_lab import (  # noqa: E402
    browser,  # noqa: F401
    page,  # noqa: F401
    playwright,
    pytestmark,  # noqa: F401
    server,  # noqa: F401
    set_to,
    until,
)


def cell(shown, table, row, column):
    """A cell of a table that is edited."""
    return shown.locator(f'[data-cell="{table}/{row}/{column}"]')


def type_into(shown, table, row, column, text):
    """Replace the text of a field and leave it."""
    field = cell(shown, table, row, column).locator("input")
    field.fill(text)
    field.press("Enter")


def said(shown, text):
    """Wait for a sentence above the charts."""
    until(shown, "document.querySelector('.rv-said')?.innerText.includes(x)", text)


def answers(shown) -> dict[str, str]:
    """Rows of the table of numbers: first cell → second cell."""
    rows = shown.locator(".rv-numbers tbody tr").all_inner_texts()
    return {row.split("\t")[0]: row.split("\t")[1] for row in rows}


def open_tab(shown, name, sentence):
    shown.get_by_role("tab", name=name).click()
    said(shown, sentence)


# ---------------------------------------------------------------------- the editor


def test_an_error_stands_at_its_field_and_goes_when_it_is_mended(page):  # noqa: F811
    open_tab(page, "Your own MDP", "2 states, 5 edges")
    assert answers(page)["full"] == "16.49 ± 3.36"
    type_into(page, "edges", 3, "reward", "much")
    said(page, "1 cell needs attention")
    wrong = cell(page, "edges", 3, "reward")
    assert wrong.get_attribute("aria-invalid") == "true"
    assert "must be a number" in wrong.inner_text()
    assert page.locator(".rv-wrong").count() == 1
    type_into(page, "edges", 3, "reward", "4")
    said(page, "2 states, 5 edges")
    assert page.locator(".rv-wrong").count() == 0
    truth = example().edit(3, "reward", "4").answers()
    assert answers(page) == {row[0]: row[1] for row in truth}
    drawn = page.locator("svg [data-state=full]").text_content()
    assert drawn == f"full{answers(page)['full']}"


def test_every_probability_of_a_sum_is_marked_and_its_remedy_works(page):  # noqa: F811
    open_tab(page, "Your own MDP", "5 edges")
    type_into(page, "edges", 0, "probability", "0.5")
    said(page, "2 cells need attention")
    would = re.search(r"(\S+) here would do", cell(page, "edges", 1, "probability").inner_text())
    type_into(page, "edges", 1, "probability", would[1])
    said(page, "5 edges")
    truth = example().edit(0, "probability", "0.5").edit(1, "probability", "0.5").answers()
    assert answers(page) == {row[0]: row[1] for row in truth}


def test_typing_goes_on_in_the_next_field(page):  # noqa: F811
    open_tab(page, "Your own MDP", "5 edges")
    cell(page, "edges", 0, "probability").locator("input").fill("x")
    page.keyboard.press("Tab")
    said(page, "1 cell needs attention")
    page.keyboard.type("9")  # the field's text is selected when one comes by Tab
    page.keyboard.press("Enter")
    value = cell(page, "edges", 0, "reward").locator("input")
    playwright.expect(value).to_have_value("9")


def test_rows_come_and_go_and_the_mdp_can_be_learned(page):  # noqa: F811
    open_tab(page, "Your own MDP", "5 edges")
    page.get_by_role("button", name="add a row").click()
    cell(page, "edges", 5, "state").wait_for()
    said(page, "5 edges")  # until it has a probability
    type_into(page, "edges", 5, "state", "cave")
    said(page, "need")
    assert "sum to 1" in cell(page, "edges", 5, "probability").inner_text()
    page.get_by_role("button", name="✕").nth(5).click()
    said(page, "2 states, 5 edges")
    type_into(page, "settings", "", "gamma", "0.5")
    until(page, "!text.includes('16.49')")
    page.get_by_role("button", name="✕").nth(2).click()
    said(page, "4 edges")
    truth = replace(example().remove(2), gamma="0.5").answers()
    assert answers(page) == {row[0]: row[1] for row in truth}
    page.get_by_role("tab", name="Two step sizes").click()
    until(page, "text.includes('variance of full') || text.includes('variance of empty')")
    chosen = page.locator("marimo-dropdown").first.get_by_role("combobox")
    assert "your own MDP" in chosen.inner_text()


def test_exports_of_the_table_can_be_read_back(page):  # noqa: F811
    open_tab(page, "Your own MDP", "5 edges")
    page.get_by_text("The Python that makes this").click()
    shown = page.locator("pre:visible").filter(has_text="MDP.from_edges")
    made: dict = {}
    exec(shown.inner_text().replace("\u00a0", " ").replace("print(", "shown = ("), made)
    assert made["mdp"] == example().mdp


# ---------------------------------------------------------------------- the grid world


def test_maps_of_the_grid_world_fill_in_and_have_the_numbers_of_the_library(page):  # noqa: F811
    open_tab(page, "A grid world", "No step yet")
    empty = page.locator(".rv-maps svg").first.locator("text").count()
    for _ in range(3):
        before = page.inner_text(".rv-said")
        page.get_by_role("button", name="Step").click()
        until(page, "document.querySelector('.rv-said').innerText !== x", before)
    assert page.locator(".rv-maps svg").first.locator("text").count() > empty
    steps = int(re.match(r"([0-9,]+) steps", page.inner_text(".rv-said"))[1].replace(",", ""))
    assert steps % 3 == 0
    world = GridWorld(GridSettings())
    world.advance(steps)
    assert page.inner_text(".rv-said").strip() == world.status()
    page.get_by_role("button", name="Play").click()
    until(page, "/^[0-9]{1,2},[0-9]{3} steps/.test(document.querySelector('.rv-said').innerText)")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Reset").click()
    said(page, "No step yet")


def test_another_policy_has_other_exact_maps(page):  # noqa: F811
    open_tab(page, "A grid world", "No step yet")
    exact = "document.querySelectorAll('.rv-maps svg')[1].textContent"
    before = page.evaluate(exact)
    page.locator("marimo-dropdown").nth(1).get_by_role("combobox").select_option("greedy")
    until(page, f"{exact} !== x", before)
    greedy = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.95), "greedy")
    shown = page.locator(".rv-maps svg").nth(1).locator("text").all_text_contents()
    assert f"{greedy.value[14]:.2g}" in shown


# ---------------------------------------------------------------------- the frontier


def test_the_slider_chooses_the_policy_of_the_library(page):  # noqa: F811
    open_tab(page, "Risk against return", "The largest mean: −11.87 ± 4.21")
    assert page.locator("[data-changed]").count() == 0
    view = FrontierChoices.search(*DOMAINS["windy-cliff"])
    c = next(c for c in view.slider if c > view.choices[2].low)
    set_to(page, "penalty", c)
    said(page, "39% less spread for 0.75 less on average")
    assert page.locator("[data-changed]").count() == len(view.changed(c))
    chosen = page.locator(".rv-numbers tbody tr", has_text="chosen").inner_text()
    assert "−12.61 ± 2.57" in chosen
    dot = page.locator("[data-point=chosen]")
    assert dot.count() == 1
    assert np.isfinite(float(dot.get_attribute("cx")))


# ---------------------------------------------------------------------- widths


@pytest.mark.parametrize("name", ["Your own MDP", "A grid world", "Risk against return"])
def test_no_view_is_wider_than_a_phone(browser, server, name):  # noqa: F811
    context = browser.new_context(viewport={"width": 400, "height": 900}, color_scheme="dark")
    context.set_default_timeout(1_000 * patience(60))
    shown = context.new_page()
    shown.goto(server)
    shown.get_by_role("tab", name=name).click()
    until(shown, "/edges|No step|largest mean/.test(document.querySelector('.rv-said')?.innerText)")
    app = "document.querySelector('#App')"
    assert shown.evaluate(f"{app}.scrollWidth <= {app}.clientWidth")
    context.close()
