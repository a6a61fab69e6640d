"""The grid world of the lab: learned maps tend to the exact ones, and the code repeats them."""

from xml.etree import ElementTree

import numpy as np
import pytest

import retvar as rv
from retvar.errors import InputError
from retvar.lab.grid import METHODS, POLICIES, WORLDS, GridSettings, GridWorld


def run(code: str) -> dict:
    """Names that a copied program defines; what it prints is left out."""
    made: dict = {}
    exec("\n".join(line for line in code.splitlines() if not line.startswith("print")), made)
    return made


@pytest.mark.parametrize("method", METHODS)
def test_the_copied_python_gives_the_numbers_of_the_maps_to_the_bit(method):
    world = GridWorld(GridSettings(method=method, seed=4))
    for steps in (1, 300, 7, 1_000):  # the ticks of a page do not matter
        world.advance(steps)
    made = run(world.code())
    seen = world.visits > 0
    np.testing.assert_array_equal(made["found"].value()[seen], world.value[seen])
    np.testing.assert_array_equal(made["found"].std()[seen], world.std[seen])
    np.testing.assert_array_equal(made["exact"].value, world.exact.value)
    np.testing.assert_array_equal(made["exact"].std, world.exact.std)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_copied_python_has_the_policy_of_the_page(policy):
    world = GridWorld(GridSettings("CliffWalking, slippery", policy, epsilon=0.3, gamma=0.9))
    world.advance(50)
    made = run(world.code())
    np.testing.assert_array_equal(made["policy"].probabilities, world.policy.probabilities)
    np.testing.assert_array_equal(made["exact"].std, world.exact.std)


def test_policies_are_what_they_are_called():
    worlds = {policy: GridWorld(GridSettings(policy=policy, epsilon=0.4)) for policy in POLICIES}
    random, greedy, mixed = (worlds[policy].policy.probabilities for policy in POLICIES)
    assert np.all(random == 0.25)
    assert set(np.unique(greedy)) == {0.0, 1.0}
    np.testing.assert_allclose(mixed, 0.6 * greedy + 0.4 * random)
    start = {policy: world.exact.value[0] for policy, world in worlds.items()}
    assert start["greedy"] > start["ε-greedy"] > start["random"]


@pytest.mark.parametrize("name", WORLDS)
def test_maps_fill_in_and_end_near_the_exact_ones(name):
    """Seeded: least squares after 30,000 steps, errors relative to the range of the map."""
    world = GridWorld(GridSettings(name))
    assert np.isnan(world.value).all()
    world.advance(2_000)
    some = np.isfinite(world.value).sum()
    world.advance(28_000)
    assert some <= np.isfinite(world.value).sum() <= world.possible.sum()
    for error, exact in zip(world.errors, (world.exact.value, world.exact.std), strict=True):
        assert error < 0.06 * np.ptp(exact)
    assert not world.visits[~world.possible].any()


def test_learners_come_nearer_too():
    world = GridWorld(GridSettings(method="Direct", alpha=0.02, policy="ε-greedy"))
    world.advance(1_000)
    first = world.errors
    world.advance(40_000)
    assert np.all(np.array(world.errors) < 0.4 * np.array(first))


@pytest.mark.parametrize("name", WORLDS)
def test_each_map_has_a_square_for_each_cell(name):
    world = GridWorld(GridSettings(name))
    world.advance(500)
    rows, columns = world.grid
    assert rows * columns == world.mdp.n_states
    page = ElementTree.fromstring(f"<div>{''.join(world.charts())}</div>")
    space = "{http://www.w3.org/2000/svg}"
    images = list(page.iter(f"{space}svg"))
    titles = [image.find(f"{space}title").text for image in images if image.get("role")]
    assert titles == [
        "Value, learned", "Value, exact", "Spread (std), learned", "Spread (std), exact", "Visits",
        "Error of the learned maps",
    ]  # fmt: skip
    for image in images[:5]:
        assert len(list(image.iter(f"{space}rect"))) == rows * columns + 1  # and the scale
    letters = sum(letter in "HGC" for letter in world.cells)
    exact = [text.text for text in images[1].iter(f"{space}text")]
    assert sum(text in ("H", "G", "C") for text in exact) == letters


def test_learned_and_exact_maps_share_their_colours():
    world = GridWorld(GridSettings())
    world.advance(200)
    page = "".join(world.charts())
    spans = [part.split("</text>")[0] for part in page.split(" to ")[1:5]]
    assert spans[0] == spans[1]
    assert spans[2] == spans[3]


def test_a_page_that_runs_for_long_keeps_a_short_history():
    world = GridWorld(GridSettings(method="Direct"))
    for _ in range(900):
        world.advance(1)
    assert len(world.history) <= 400
    assert world.steps == 900
    assert world.history[-1][0] == 900


def test_an_estimator_that_fails_says_so_and_keeps_its_maps(monkeypatch):
    world = GridWorld(GridSettings(method="Direct"))
    world.advance(100)
    before = world.value.copy()

    def diverge(chunk):
        raise rv.DivergenceError("variance", 3, 1, 0.5)

    monkeypatch.setattr(world.estimator, "update_many", diverge)
    world.advance(100)
    assert "diverged" in world.status()
    np.testing.assert_array_equal(world.value, before)
    assert world.steps == 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("world", "Moon"), ("policy", "best"), ("method", "luck"), ("epsilon", 1.5),
        ("gamma", float("nan")), ("alpha", -0.1), ("seed", -1),
    ],
)  # fmt: skip
def test_bad_settings_are_named(field, value):
    with pytest.raises(InputError, match=f"^{field}"):
        GridSettings(**{field: value})


def test_steps_must_be_a_number():
    with pytest.raises(InputError, match="steps"):
        GridWorld(GridSettings()).advance(0)


def test_the_code_of_a_world_without_a_step_gives_the_exact_maps_alone():
    text = GridWorld(GridSettings()).code()
    assert "found" not in text
    assert "exact.value" in text
    compile(text, "grid.py", "exec")
