"""MDP: construction, validation messages, files and immutability."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6).filter(lambda x: x != "end")
shares = st.floats(0.01, 1.0)
discounts = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
rewards = st.floats(-1e6, 1e6)


@st.composite
def mdps(draw) -> rv.MDP:
    """Any small MDP: named or numbered, γ per state or edge, ends, parallel edges, policies."""
    n, k = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    named = draw(st.booleans())
    states = draw(st.lists(names, min_size=n, max_size=n, unique=True)) if named else n
    actions = draw(st.lists(names, min_size=k, max_size=k, unique=True)) if named else k
    per_edge = draw(st.booleans())
    rows = []
    for s in range(n):
        for a in range(draw(st.integers(1, k))):
            weights = draw(st.lists(shares, min_size=1, max_size=3))
            for w in weights:
                to = draw(st.integers(-1, n - 1))
                g = (0.0 if to < 0 else draw(discounts)) if per_edge else None
                std = abs(draw(rewards))
                rows.append(rv.Edge(s, a, to, w / sum(weights), draw(rewards), std, g))
    available = [max(r.action for r in rows if r.state == s) + 1 for s in range(n)]
    policies = {}
    for name in draw(st.lists(names, max_size=2, unique=True)):
        table = np.zeros((n, k))
        for s in range(n):
            weights = np.array(draw(st.lists(shares, min_size=available[s], max_size=available[s])))
            table[s, : available[s]] = weights / weights.sum()
        policies[name] = table
    start = np.array(draw(st.lists(shares, min_size=n, max_size=n)))
    return rv.MDP.from_edges(
        rows,
        states=states,
        actions=actions,
        gamma=None if per_edge else draw(st.lists(discounts, min_size=n, max_size=n)),
        lam=draw(st.lists(discounts, min_size=n, max_size=n)),
        start=start / start.sum(),
        policies=policies,
        positions=draw(st.sampled_from([None, np.arange(2.0 * n).reshape(n, 2)])),
        name=draw(st.text(st.characters(codec="utf-8"), max_size=5)),
    )


@given(mdps())
def test_toml_gives_back_the_same_mdp(tmp_path_factory, mdp):
    path = tmp_path_factory.mktemp("toml") / "mdp.toml"
    mdp.to_toml(path)
    assert rv.MDP.from_toml(path) == mdp


@given(mdps())
def test_copies_and_pickles_are_equal_and_hash_alike(mdp):
    for twin in (copy.deepcopy(mdp), pickle.loads(pickle.dumps(mdp)), mdp.replace()):
        assert twin == mdp
        assert hash(twin) == hash(mdp)


@given(mdps())
def test_the_order_of_edges_between_actions_does_not_matter(mdp):
    e = mdp.edges
    order = np.argsort(-(e.state * mdp.n_actions + e.action), kind="stable")
    again = rv.MDP(
        tuple(column[order] for column in e),
        lam=mdp.lam,
        start=mdp.start,
        policies=dict(mdp.policies),
        states=mdp.state_names or mdp.n_states,
        actions=mdp.action_names or mdp.n_actions,
        positions=mdp.positions,
        name=mdp.name,
    )
    assert again == mdp


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.5},
        {"lam": 0.3},
        {"start": 1},
        {"name": "other"},
        {"states": ["a", "b", "c", "d"]},
        {"actions": ["a"]},
        {"policies": {"only": np.ones((4, 1))}},
        {"positions": np.zeros((4, 2))},
    ],
)
def test_any_change_makes_it_another_mdp(change):
    chain = rv.domains.chain()
    assert chain.replace(**change) != chain
    assert chain.replace(**change) == chain.replace(**change)
    assert chain != "chain"


def test_replace_names_unknown_settings():
    with pytest.raises(rv.InputError, match="lamda: unknown; settings are gamma, lam, start"):
        rv.domains.chain().replace(lamda=0.3)


def test_an_mdp_cannot_be_changed():
    mdp = rv.domains.chain()
    with pytest.raises(AttributeError, match="immutable"):
        mdp.lam = 0.5
    for array in (*mdp.edges, mdp.lam, mdp.start, mdp.positions, mdp.available):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(TypeError):
        mdp.policies["new"] = None
    with pytest.raises(ValueError, match="read-only"):
        mdp.policy().probabilities[0] = 1


def test_arrays_passed_in_are_copied():
    lam = np.full(4, 0.5)
    mdp = rv.domains.chain().replace(lam=lam)
    lam[:] = 9
    assert_array_equal(mdp.lam, 0.5)


def test_parallel_edges_are_not_merged():
    mdp = rv.MDP.from_edges([(0, 0, 0, 0.5, 1.0), (0, 0, 0, 0.5, -1.0)], gamma=0.5)
    assert mdp.edges.reward.tolist() == [1.0, -1.0]
    assert rv.solve(mdp, lam=0).variance[0] == pytest.approx(1)


def test_dense_arrays_and_edges_give_the_same_mdp():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), size=(3, 2))
    R = rng.normal(size=(3, 2, 3))
    rows = [(s, a, t, P[s, a, t], R[s, a, t]) for s, a, t in np.ndindex(3, 2, 3)]
    dense = rv.MDP.from_dense(P, R, gamma=0.9, lam=0.5)
    assert dense == rv.MDP.from_edges(rows, gamma=0.9, lam=0.5)
    by_action = rv.MDP.from_dense(P, R[:, :, 0], gamma=0.9)
    assert_allclose(by_action.edges.reward, np.repeat(R[:, :, 0].ravel(), 3))
    by_state = rv.MDP.from_dense(P, R[:, 0, 0], gamma=0.9, reward_std=1.0)
    assert_allclose(by_state.edges.reward, np.repeat(R[:, 0, 0], 6))
    assert_allclose(by_state.edges.reward_std, 1)


def test_an_empty_row_of_dense_arrays_is_an_unavailable_action():
    mdp = rv.MDP.from_dense([[[1.0], [0.0]]], 1.0, gamma=0.5)
    assert mdp.available.tolist() == [[True, False]]
    assert mdp.policy("uniform").probabilities.tolist() == [[1.0, 0.0]]


def test_probabilities_that_sum_to_one_up_to_rounding_are_not_rescaled():
    mdp = rv.MDP.from_edges([(0, 0, 0, 0.1)] * 10, gamma=0.5)
    assert_array_equal(mdp.edges.probability, 0.1)
    nearly = rv.MDP.from_edges([(0, 0, 0, 0.333333333333), (0, 0, 0, 0.666666666666)], gamma=0.5)
    assert nearly.edges.probability.sum() == pytest.approx(1, abs=1e-16)


def test_gamma_of_states_is_derived_from_the_edges():
    mdp = rv.domains.complex_mdp()
    assert mdp.gamma.tolist() == [0.5, 0.4, 0.1, 1.0, 0.0]
    differs = rv.MDP.from_edges([(0, 0, 0, 0.5, 0, 0, 1.0), (0, 0, 0, 0.5, 0, 0, 0.5)])
    assert differs.gamma is None
    never_entered = rv.domains.chain(gamma=[0.25, 0.5, 0.5, 0.5])
    assert never_entered.gamma[0] == 0.25
    assert never_entered.replace(lam=0.5).gamma[0] == 0.25


def test_names_may_be_used_everywhere():
    mdp = rv.MDP.from_edges(
        [("day", "wait", "night"), ("night", "wait", "day"), ("night", "sleep", "end")],
        gamma=0.9,
        start={"day": 0.25, "night": 0.75},
        policies={"lazy": {"day": "wait", "night": {"wait": 0.5, "sleep": 0.5}}},
    )
    assert mdp.state_index("night") == mdp.state_index(1) == 1
    assert mdp.action_index("sleep") == 1
    assert mdp.start.tolist() == [0.25, 0.75]
    assert mdp.policy("lazy").probabilities.tolist() == [[1, 0], [0.5, 0.5]]
    assert mdp.episodic
    assert "1 of them ends an episode" in repr(mdp)


STATES = {"gamma": 0.5}


@pytest.mark.parametrize(
    ("edges", "settings", "text"),
    [
        ([], STATES, r"edges = \[\]: must hold at least one edge"),
        ([(0, 0)], STATES, r"edges\[0\] = \(0, 0\): must be \(state, action, next_state"),
        ([(0, 0, 0, 0.5)], STATES, r"sum of probability\[0, 0\] = 0.5: .* must sum to 1"),
        ([(0, 0, 0, 1.5), (0, 0, 0, -0.5)], STATES, r"probability\[0, 0 → 0\] = -0.5: .*negative"),
        ([(0, 0, 0, np.nan)], STATES, r"probability\[0, 0 → 0\] = nan: must be a finite"),
        ([("a", "x", "a", 1, np.inf)], STATES, r"reward\[a, x → a\] = inf: must be a finite"),
        ([(0, 0, 0, 1, "much")], STATES, r"edges\[0\].reward = 'much': must be a number"),
        ([(0, 0, 0, 1, 0, -1)], STATES, r"reward_std\[0, 0 → 0\] = -1: must not be negative"),
        ([(0, 0, 0, 1, 0, np.nan)], STATES, r"reward_std\[0, 0 → 0\] = nan"),
        ([(0, 0, 1)], STATES, "states = 1: must have an edge that leaves them"),
        ([(0, 0, 0)], {}, "gamma = nothing: give γ once"),
        ([(0, 0, 0, 1, 0, 0, 0.5)], STATES, "gamma = given per state and per edge: give γ once"),
        ([(0, 0, 0)], {"gamma": 1.2}, r"gamma = 1.2: must lie in \[0, 1\]"),
        ([(0, 0, 0)], {"gamma": [0.1, 0.2]}, r"gamma = an array of shape \(2,\): must be one"),
        ([(0, 0, 0)], {"gamma": "high"}, "gamma = high: must be a number"),
        ([(0, 0, "end", 1, 0, 0, 0.5)], {}, r"gamma\[0, 0 → end\] = 0.5: must be 0 where the"),
        ([(0, 0, 0, 0.5, 0, 0, 0.5), (0, 0, 0, 0.5)], {}, r"edges\[1\].gamma = None: give γ for"),
        ([(0, 0, 0)], {**STATES, "lam": -0.1}, "lam = -0.1: must lie in"),
        ([(0, 0, 0)], {**STATES, "lam": np.nan}, "lam = nan"),
        ([("a", 0, "a")], {**STATES, "start": "b"}, "start = 'b': unknown; states are a"),
        ([(0, 0, 0)], {**STATES, "start": 3}, "start = 3: unknown; states are 0 to 0"),
        ([(0, 0, 0)], {**STATES, "start": {0: 0.4}}, "sum of start = 0.4: must be 1"),
        ([(0, 0, 0)], {**STATES, "start": {0: None}}, r"start\[0\] = None: must be a number"),
        ([(0, 0, 0)], {**STATES, "start": [-1.0]}, r"start\[0\] = -1: must not be negative"),
        ([(0, 0, 0)], {**STATES, "states": ["a", "a"]}, "states = a: must be distinct"),
        ([(0, 0, 0)], {**STATES, "states": ["end"]}, "states = end: is reserved for the end"),
        ([(0, 0, 0)], {**STATES, "states": 0}, "states = 0: must be a whole number of at least 1"),
        ([("end", 0, "a")], STATES, r"edges\[0\].state = 'end': unknown; states are"),
        ([("a", 0, "b")], {**STATES, "states": ["a"]}, r"next_state = 'b': unknown; states are a"),
        ([("a", 0, 0), (0, 0, "a")], STATES, "states = a, 0: must be all names or all numbers"),
        ([(0, 0, 0.5)], STATES, r"edges\[0\].next_state = 0.5: must be a name or an index"),
        ([(0, [1], 0)], STATES, r"edges\[0\].action = \[1\]: must be a name or an index"),
        ([(0, 0, 0)], {**STATES, "positions": [1.0]}, "positions = an array of shape"),
        ([(0, 0, 0)], {**STATES, "policies": {"p": [[0.5]]}}, r"sum of policies.p\[0\] = 0.5"),
        (
            [(0, 0, 0)],
            {**STATES, "policies": {"p": [[1, 0]]}},
            "1 states × 2 actions: must be for",
        ),
        ([(0, 0, 0)], {**STATES, "policies": {"p": {}}}, "policies.p = nothing for 0: must have"),
    ],
)
def test_invalid_mdps_raise_with_field_value_and_remedy(edges, settings, text):
    with pytest.raises(rv.InputError, match=text):
        rv.MDP.from_edges(edges, **settings)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (([0.5], [0], [0], 1, 0, 0, 0.5), r"edges.state\[0\] = 0.5: must be a whole number"),
        (([0], [0], [7], 1, 0, 0, 0.5), r"edges.next_state\[0\] = 7: must lie between -1 and 0"),
        (([0], [0, 0], [0], 1, 0, 0, 0.5), "edges.action = 2 entries: must have 1"),
        ((["a"], [0], [0], 1, 0, 0, 0.5), "must be whole numbers"),
        (([[0]], [0], [0], 1, 0, 0, 0.5), "must have one dimension"),
        (([0], [0], [0]), "edges = tuple: must be the seven columns"),
        (([], [], [], [], [], [], []), "edges = none: must hold at least one edge"),
    ],
)
def test_invalid_columns_raise(columns, text):
    with pytest.raises(rv.InputError, match=text):
        rv.MDP(columns, states=1)


@pytest.mark.parametrize(
    ("P", "R", "text"),
    [
        ([[0.5, 0.5]], 0.0, r"P = an array of shape \(1, 2\): must be P\[s, a, s′\]"),
        ([[[np.nan]]], 0.0, r"P\[0, 0, 0\] = nan: must be a probability"),
        ([[[-1.0]]], 0.0, r"P\[0, 0, 0\] = -1.0: must be a probability"),
        ([[[1.0]]], np.zeros(4), r"R = an array of shape \(4,\): must be R\[s, a, s′\]"),
        ([[[1.0]]], np.nan, "R = not finite"),
    ],
)
def test_invalid_dense_arrays_raise(P, R, text):
    with pytest.raises(rv.InputError, match=text):
        rv.MDP.from_dense(P, R, gamma=0.5)


GOOD = 'gamma = 0.9\nedges = [{ state = "a", next_state = "end" }]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma = ", "bad.toml = not TOML: "),
        ("gamma = 0.9", "bad.toml: top level = malformed: .*missing required field `edges`"),
        ('edges = [{ state = "a" }]', r"bad.toml: edges\[0\] = malformed: .*`next_state`"),
        (GOOD.replace("0.9", '"x"'), "bad.toml: gamma = malformed: Expected `float"),
        (GOOD + "lambda = 1", "bad.toml: top level = malformed: .*unknown field `lambda`"),
        (GOOD.replace("0.9", "1.5"), "bad.toml: gamma = 1.5: must lie in"),
        (GOOD.replace("0.9", "nan"), "bad.toml: gamma = nan: must be a finite"),
        (GOOD + "[policies.p]\nb = 0", r"bad.toml: policies.p.b = 'b': unknown; states are a"),
        (GOOD + "[policies.p]\na = { x = 1.0 }", "bad.toml: policies.p.a = 'x': unknown"),
        (GOOD + "[policies]\np = 3", "bad.toml: policies.* = malformed"),
    ],
)
def test_malformed_files_raise_with_the_path_of_the_field(tmp_path, text, message):
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(rv.InputError, match=message):
        rv.MDP.from_toml(file)


def test_missing_and_binary_files_raise(tmp_path):
    with pytest.raises(rv.InputError, match="does not exist"):
        rv.MDP.from_toml(tmp_path / "none.toml")
    with pytest.raises(rv.InputError, match="cannot be read"):
        rv.MDP.from_toml(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(rv.InputError, match="not TOML"):
        rv.MDP.from_toml(tmp_path / "bytes.toml")


def test_a_file_written_by_hand_needs_little(tmp_path):
    file = tmp_path / "coin.toml"
    file.write_text(
        """
        gamma = 1.0
        edges = [
            { state = "toss", next_state = "toss", probability = 0.5, reward = 1.0 },
            { state = "toss", next_state = "end", probability = 0.5 },
        ]
        """,
        encoding="utf-8",
    )
    assert rv.solve(rv.MDP.from_toml(file)).variance == pytest.approx(2)


def test_writing_needs_a_folder_and_leaves_nothing_behind(tmp_path):
    chain = rv.domains.chain()
    with pytest.raises(rv.InputError, match="folder does not exist"):
        chain.to_toml(tmp_path / "no" / "chain.toml")
    with pytest.raises(rv.InputError, match="is a folder"):
        chain.to_toml(tmp_path)
    chain.to_toml(tmp_path / "chain.toml")
    assert [p.name for p in tmp_path.iterdir()] == ["chain.toml"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rv.MDP([(0, 0, 0, 1.0, 0.0, 0.0)], gamma=0.5), "edges = list: must be the seven"),
        (lambda: rv.MDP(None), "edges = NoneType"),
        (lambda: rv.MDP.from_edges(None, gamma=0.5), "edges = None: must be a list of edges"),
        (lambda: rv.MDP.from_edges([(0, None, 0)], gamma=0.5), r"edges\[0\].action = None"),
        (lambda: rv.MDP.from_edges([(0, 0, 10**9)], gamma=0.5), "states = 1,000,000,001: must"),
        (lambda: rv.MDP.from_edges([(0, 10**9, 0)], gamma=0.5), "states × actions = 1 × 1,000"),
        (lambda: rv.MDP.from_edges([(0, 0, 0, 1, 10**400)], gamma=0.5), "reward = 1000"),
        (lambda: rv.MDP.from_edges([(0, 0, 0)], gamma=0.5, states=1.5), "states = 1.5"),
        (lambda: rv.MDP.from_edges([(0, 0, 0)], gamma=0.5, policies=[[1.0]]), "policies = "),
        (lambda: rv.MDP.from_edges([(0, 0, 0)], gamma=1j), "gamma = 1j"),
        (lambda: rv.MDP(([np.nan], [0], [0], 1, 0, 0, 0.5)), r"edges.state\[0\] = nan"),
        (lambda: rv.MDP.from_dense([[["a"]]], 0.0, gamma=0.5), "P = "),
        (lambda: rv.MDP.from_dense([[[1.0], [0.0]]], [[0, np.nan]], gamma=0.5), "R = not finite"),
        (lambda: rv.MDP.from_gymnasium(None, gamma=0.5), "environment = None: has no transition"),
        (lambda: rv.domains.random_mdp(3, seed=-1), "seed = -1"),
        (lambda: rv.domains.random_mdp(3, gamma="x"), "gamma = x"),
        (lambda: rv.domains.random_walk(right="x"), "right = x"),
        (lambda: rv.domains.find("random-walk", right="x"), "right = x"),
    ],
)
def test_odd_input_raises_an_input_error(make, text):
    with pytest.raises(rv.InputError, match=text):
        make()


def test_every_state_may_have_actions_of_its_own():
    names = [f"s{k}" for k in range(2_000)]
    mdp = rv.MDP.from_edges([(s, f"leave {s}", "end", 1.0, 1.0) for s in names], gamma=1.0)
    assert mdp.n_actions == 2_000
    assert_array_equal(rv.Policy.uniform(mdp).probabilities, np.eye(2_000))


def test_edges_may_be_mappings_and_gymnasium_tables_plain_dicts():
    import gymnasium

    row = {"state": 0, "action": 0, "next_state": "end", "reward": 2.0}
    assert rv.solve(rv.MDP.from_edges([row], gamma=1.0)).value[0] == 2
    env = gymnasium.make("FrozenLake-v1")
    table = rv.MDP.from_gymnasium(env.unwrapped.P, gamma=0.9)
    assert_allclose(rv.solve(table).value, rv.solve(rv.MDP.from_gymnasium(env, gamma=0.9)).value)


def test_a_file_without_gamma_uses_the_argument(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('edges = [{ state = "a", next_state = "a", reward = 1.0 }]', encoding="utf-8")
    with pytest.raises(rv.InputError, match=r"a\.toml: gamma = nothing: give γ once"):
        rv.MDP.from_toml(file)
    assert rv.solve(rv.MDP.from_toml(file, gamma=0.5)).value[0] == pytest.approx(2)


def test_errors_stay_on_one_line_however_large_the_value():
    error = rv.InputError("value", np.zeros((100, 100)), "must be smaller")
    assert "\n" not in str(error)
    assert len(str(error)) < 200


def test_nothing_can_be_deleted_from_an_mdp():
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del rv.domains.chain().lam


def test_a_state_of_thousands_of_digits_is_unknown():
    """Python refuses to read such a number."""
    mdp = rv.MDP.from_edges([(0, 0, "end", 1.0, 1.0)], gamma=0.9)
    with pytest.raises(rv.InputError, match="unknown; states are 0 to 0"):
        mdp.state_index("9" * 5_000)
