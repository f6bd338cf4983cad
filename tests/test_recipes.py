"""Every recipe can be trained as it stands, or with changes; who learns from what is as a slow search finds."""
from dataclasses import asdict, fields, replace
from itertools import combinations

import numpy as np
import pytest
from drawn import drawn_layout, drawn_tile
from training import GRAPHS, VALID, GivenData

from kit.data import COLLECTIONS
from kit.losses import pairwise_hinge_loss, standardised_hinge_loss
from kit.models import SegmentGNN, SegmentGNNSettings
from kit.predict import predict
from kit.recipes import SCALES, Recipe, recipes_for
from kit.train import TrainSettings, train
from lab.training import Member, choose_recipes, plan_members
from lab.training.plan import FEW_GRAPHS, VALID_CONFIGS, with_seed

TILE, XLA, XLA_DEFAULT, NLP, NLP_DEFAULT = COLLECTIONS
TOGETHER = "token", "lightgbm", "additive"                       # whom the smaller recipes train once for all


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_each_recipe_trains_and_ranks(collection, scale):
    graph = drawn_tile(0) if collection == "tile:xla" else drawn_layout(0)
    for recipe in recipes_for(collection, scale).values():
        model = recipe.network(recipe.shape)
        train(model, [graph], replace(recipe.settings, steps=2), recipe.loss)
        assert len(set(predict(model, graph))) > 1


def test_the_first_place_s_attention_is_for_the_default_collections_alone():
    full = {c: recipes_for(c, "full")["gnn"] for c in COLLECTIONS[1:]}
    assert [c for c in full if full[c].shape.config_attention] == [c for c in full if c.endswith("default")]
    assert {c: r.settings.configs_per_step for c, r in full.items()} == {
        c: 64 if c.endswith("default") else 128 for c in full}


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="scale is 'large'; expected 'tiny' or 'short' or 'quick' or 'full'"):
        recipes_for("tile:xla", "large")


def test_recipes_with_segments_train_the_gnn_on_segments_and_leave_the_other_models_as_they_are():
    graph, names = drawn_layout(0, n=40), []
    for collection in COLLECTIONS:
        for scale in SCALES:
            whole, cut = recipes_for(collection, scale), recipes_for(collection, scale, segments=15)
            changed = [name for name in whole if whole[name] != cut[name]]
            names.append(changed)
            for name in changed:
                one, shape = cut[name], asdict(whole[name].shape)
                plan = replace(whole[name].settings, steps=(2 - (scale == "tiny")) * whole[name].settings.steps)
                assert one == whole[name]._replace(network=SegmentGNN, settings=plan, shape=SegmentGNNSettings(
                    **shape, segment_nodes=15, margin=1))
    assert names == [[]] * len(SCALES) + [["gnn"]] * 4 * len(SCALES)
    model = one.network(replace(one.shape, width=8))
    train(model, [graph], replace(one.settings, steps=2), one.loss)
    assert [len(part.counted) for part in model.prepare(graph).parts] == [14, 14, 12] and len(model.table.rows) > 0
    assert len(set(predict(model, graph))) > 1


@pytest.mark.parametrize("segments", [0, -1, 2.5, True, "many"])
def test_segments_of_no_size_are_refused(segments):
    with pytest.raises(ValueError, match=f"^segments is {segments!r}; expected a whole number of at least 1$"):
        recipes_for("layout:xla:random", segments=segments)


def test_of_few_programs_the_token_model_learns_only_opcodes_and_agreement():
    shapes = [recipes_for("layout:xla:default", programs=p)["token"].shape for p in (2, 3, 4, None)]
    assert [s.features or s.digits or s.graph_blocks > 0 for s in shapes] == [False, False, True, True]
    assert all(s.agreement and s.pairs for s in shapes)


def test_only_the_smaller_recipes_of_several_programs_train_one_token_model_for_all():
    found = {(scale, programs): recipes_for("layout:xla:random", scale, programs) for scale in SCALES
             for programs in (3, 4)}
    assert [key for key, own in found.items() if own["token"].together] == [("tiny", 4), ("short", 4)]
    assert not any(own["gnn"].together or own[kind].together != own["token"].together
                   for kind in TOGETHER for own in found.values())
    losses = {key: own["token"].loss for key, own in found.items()}
    assert {key for key, loss in losses.items() if loss is standardised_hinge_loss} == {
        ("tiny", 4), ("short", 4), ("quick", 4)}
    assert {*losses.values()} == {standardised_hinge_loss, pairwise_hinge_loss}


def test_the_recipes_that_only_try_the_cells_are_the_short_ones_with_one_seed_and_few_steps():
    for collection in COLLECTIONS:
        tiny, short = (recipes_for(collection, scale) for scale in ("tiny", "short"))
        assert tiny.keys() == short.keys()
        for name, one in tiny.items():
            assert one.seeds == 1 and 1 <= one.settings.steps <= 20
            assert one == short[name].changed(seeds=1, steps=one.settings.steps)


# --- other settings

def test_a_change_reaches_the_network_or_the_training_and_nothing_else():
    for recipe in [one for c in COLLECTIONS for one in recipes_for(c).values()]:
        network, training = ({field.name for field in fields(one)} for one in (recipe.shape, recipe.settings))
        assert network & training == {"seed"}
        assert recipe.changed() == recipe
        assert recipe.changed(steps=7, learning_rate=0.5, seeds=5) == recipe._replace(
            settings=replace(recipe.settings, steps=7, learning_rate=0.5), seeds=5)
        for name in [name for name in network - {"seed"} if type(getattr(recipe.shape, name)) is int]:
            change = {name: getattr(recipe.shape, name) + 1}
            assert recipe.changed(**change) == recipe._replace(shape=replace(recipe.shape, **change))
    both = recipes_for(XLA)["gnn"].changed(width=16, memory_budget=1 << 20)
    assert (both.shape.width, both.settings.memory_budget) == (16, 1 << 20)
    assert sum(parameter.numel() for parameter in both.network(both.shape).parameters()) < 50_000


@pytest.mark.parametrize("name, settings, said", [
    ("token", {"widht": 8, "leaves": 3}, "^ConfigTokenModel has no setting leaves, widht; there are agreement, "),
    ("lightgbm", {"width": 8}, "^BoostedTrees has no setting width; there are .*, seed, seeds, steps, "),
    ("gnn", {"loss": max}, "^LayoutGNN has no setting loss; "), ("gnn", {"network": max}, "no setting network; "),
    ("gnn", {"seeds": 0}, "^seeds is 0; expected a whole number of at least 1$"),
    ("gnn", {"width": 0}, "^width is 0; expected"), ("gnn", {"steps": -1}, "^steps is -1; expected")])
def test_a_change_that_means_nothing_is_refused(name, settings, said):
    recipe = recipes_for(XLA)[name]
    with pytest.raises(ValueError, match=said):
        recipe.changed(**settings)


@pytest.mark.parametrize("steps, every", [(1, 1), (7, 1), (40, 10), (850, 212)])
def test_a_recipe_for_one_seed_is_validated_at_about_four_moments(steps, every):
    recipe = recipes_for(XLA)["gnn"].changed(steps=steps)
    for number, keep in ((0, "last"), (FEW_GRAPHS - 1, "last"), (FEW_GRAPHS, "best")):
        one = with_seed(recipe, 3, VALID[:1] * number, "cuda")
        assert one == recipe._replace(shape=replace(recipe.shape, seed=3), settings=replace(
            recipe.settings, seed=3, device="cuda", validate_every=every, keep=keep))


# --- what is trained, and who learns from what

def named(*names, c=7):
    return [drawn_layout(seed, c=c)._replace(graph_id=name) for seed, name in enumerate(names)]


def given(**training):
    """Data of these collections, each with programs of these names to train on and two to validate and to test on."""
    collections = {"xla": XLA, "xla_default": XLA_DEFAULT, "nlp": NLP, "nlp_default": NLP_DEFAULT}
    return GivenData({collections[short]: {"train": named(*names), "valid": VALID, "test": VALID}
                      for short, names in training.items()})


def planned(members):
    return [(one.kind, one.seed, one.trains_on, one.ranks) for one in members]


def test_equal_recipes_that_say_together_are_one_model_that_ranks_what_several_would_rank():
    data = given(xla="abcd", xla_default="abcd", nlp="ab")
    recipes = choose_recipes(data, "short")
    found = plan_members(data, recipes, 1)
    both = (XLA, XLA_DEFAULT)
    assert planned(found) == [*((kind, 0, both, both) for kind in TOGETHER), ("gnn", 0, (XLA,), (XLA,)),
                              ("gnn", 0, (XLA_DEFAULT,), (XLA_DEFAULT,)),
                              *((kind, 0, (NLP,), (NLP,)) for kind in (*TOGETHER, "gnn"))]    # few programs
    whole = found[0]
    assert whole.recipe == recipes[XLA]["token"] and whole.recipe.settings.steps == 850
    assert [g.graph_id for g in whole.taught(data)] == [*"abcd", *"abcd"]
    assert {key: [*own] for key, own in whole.asked(data).items()} == {
        (c, split): [f"{c}:v", f"{c}:w"] for c in both for split in ("valid", "test")}
    assert len(whole.judged_by(data)) == 4
    for alone in (given(xla="abcd"), given(xla="abcd", nlp="ab")):
        assert all(one.trains_on == one.ranks and len(one.ranks) == 1
                   for one in plan_members(alone, choose_recipes(alone, "short")))


def test_a_collection_whose_recipe_was_changed_stays_alone():
    data = given(xla="abcd", xla_default="abcd", nlp="abcd")
    recipes = choose_recipes(data, "short", "token,lightgbm")
    recipes[XLA_DEFAULT]["token"] = recipes[XLA_DEFAULT]["token"].changed(steps=5)
    assert planned(plan_members(data, recipes, 1)) == [
        ("token", 0, (XLA, NLP), (XLA, NLP)), ("lightgbm", 0, *[(XLA, XLA_DEFAULT, NLP)] * 2),
        ("token", 0, (XLA_DEFAULT,), (XLA_DEFAULT,))]
    together = {c: {"gnn": one["token"]._replace(together=c != NLP)} for c, one in recipes.items()}
    del together[XLA_DEFAULT]
    assert [one.ranks for one in plan_members(data, together, 1)] == [(XLA,), (NLP,)]


def test_a_collection_that_learns_from_a_counterpart_shares_the_counterpart_s_models(capsys):
    """Where xla:default has no program to train on, and learns from those of xla:random."""
    data = given(xla="abcd", xla_default="", nlp="ab")
    recipes = choose_recipes(data, "short")
    assert f"{XLA_DEFAULT} is trained on 4 graphs of {XLA}\n" in capsys.readouterr().out
    both = (XLA, XLA_DEFAULT)
    assert planned(plan_members(data, recipes, 1))[:4] == [
        (kind, 0, (XLA,), both) for kind in (*TOGETHER, "gnn")]
    # two collections of the other source stand in; a graph that two of the joint collections learn from is there once
    data = given(xla="abcd", xla_default="efgh", nlp="")
    recipes = choose_recipes(data, "short")
    assert planned(plan_members(data, recipes, 1)) == [
        *((kind, 0, both, (*both, NLP)) for kind in TOGETHER),
        ("gnn", 0, (XLA,), (XLA,)), ("gnn", 0, (XLA_DEFAULT,), (XLA_DEFAULT,)), ("gnn", 0, both, (NLP,))]
    assert len(plan_members(data, recipes, 1)[0].taught(data)) == 8


def slow_plan(data, recipes):
    """{(kind, recipe, set of teachers): set of collections}; two collections share a model if nothing differs."""
    asked = [(c, kind) for c, own in recipes.items() for kind in own]

    def joined(one, other):
        (c, kind), (d, same) = one, other
        return kind == same and recipes[c][kind] == recipes[d][kind] and recipes[c][kind].together

    def learns(c, kind):
        return frozenset(teacher for d, other in asked if (d, other) == (c, kind) or joined((c, kind), (d, other))
                         for teacher in data.teachers(d))
    found = {}
    for c, kind in asked:
        found.setdefault((kind, recipes[c][kind], learns(c, kind)), set()).add(c)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_plans_are_those_of_a_slow_search(seed):
    rng = np.random.default_rng(seed)
    names = {short: "abcd"[:rng.integers(0, 5)] for short in ("xla", "xla_default", "nlp", "nlp_default")}
    data = given(**names | {"xla": "ab"})
    one = recipes_for(XLA)["gnn"]
    some = [Recipe(one.network, one.shape, TrainSettings(steps), seeds=2, together=together)
            for together in (False, True) for steps in (1, 2)]
    recipes = {c: {kind: some[rng.integers(len(some))] for kind in ("token", "gnn")} for c in data.taught}
    found = plan_members(data, recipes)
    assert [one.seed for one in found] == [0, 1] * (len(found) // 2)
    by_key = {(one.kind, one.recipe, frozenset(one.trains_on)): {*one.ranks} for one in found}
    assert by_key == slow_plan(data, recipes) and len(by_key) * 2 == len(found)
    for one in found:
        assert len({*one.trains_on}) == len(one.trains_on) and len({*one.ranks}) == len(one.ranks)
    for one, other in combinations(found[::2], 2):                       # nothing is ranked twice by a kind
        assert one.kind != other.kind or not {*one.ranks} & {*other.ranks}


def test_seeds_are_those_of_the_recipe_or_as_many_as_asked_for():
    data = given(xla="ab")
    recipes = {XLA: {"gnn": recipes_for(XLA)["gnn"].changed(seeds=3), "token": recipes_for(XLA)["token"]}}
    assert [(one.kind, one.seed) for one in plan_members(data, recipes)] == [
        *(("gnn", seed) for seed in range(3)), *(("token", seed) for seed in range(2))]
    assert [(one.kind, one.seed) for one in plan_members(data, recipes, 2, 10)] == [
        (kind, seed) for kind in ("gnn", "token") for seed in (10, 11)]
    for more, said in (({"seeds": 0}, "seeds is 0"), ({"first_seed": -1}, "first_seed is -1")):
        with pytest.raises(ValueError, match=f"^{said}; expected a whole number of at least"):
            plan_members(data, recipes, **more)


def test_few_configurations_of_each_validation_graph_choose_weights():
    long, tile = named("long", c=3 * VALID_CONFIGS)[0], drawn_tile(0)
    splits = {TILE: {"train": [tile], "valid": [tile]}, XLA: {"train": GRAPHS, "valid": [long, *VALID]}}
    data = GivenData(splits, source="real files")
    one = Member("gnn", 0, None, (XLA,), (XLA,))
    assert [len(g.config_runtime) for g in one.judged_by(data)] == [VALID_CONFIGS, 20, 20]
    assert len(one.asked(data)[XLA, "valid"][f"{XLA}:long"].config_runtime) == 3 * VALID_CONFIGS
    assert one._replace(trains_on=(TILE,)).judged_by(data) == [tile]
    measured = one.judged_by(GivenData(splits))                  # there, each configuration counts once
    assert [len(g.config_runtime) for g in measured] == [len(np.unique(g.config_codes, axis=0)) for g in [long, *VALID]]


# --- which recipes

def test_chosen_recipes_are_those_of_the_scale_and_of_the_programs_of_each_collection():
    data = given(xla="abcd", xla_default="", nlp="ab")
    found = choose_recipes(data, "short")
    assert found == {XLA: recipes_for(XLA, "short", 4), XLA_DEFAULT: recipes_for(XLA_DEFAULT, "short", 4),
                     NLP: recipes_for(NLP, "short", 2)}
    found = choose_recipes(data, "full", ["gnn", "token"], {"gnn": {"width": 8}, "lightgbm": {"leaves": 3}}, segments=9)
    for c, own in found.items():
        full = recipes_for(c, "full", len(data.train[c]), 9)
        assert own == {"token": full["token"], "gnn": full["gnn"].changed(width=8)}
    assert choose_recipes(given(xla=""), "short") == {}                                      # nothing to train on
    tiles = GivenData({TILE: {"train": [drawn_tile(0)]}})
    assert choose_recipes(tiles, "quick", changes={"tile": {"steps": 5}}) == {
        TILE: {"tile": recipes_for(TILE)["tile"].changed(steps=5)}}
    assert choose_recipes(tiles, "quick", "token") == {TILE: {}}


@pytest.mark.parametrize("models, changes, said", [
    ("token,gnm", None, "^no model gnm; there are tile, token, lightgbm, additive, gnn$"),
    (["b", "a"], None, "^no model a, b; there are"), (None, {"Token": {"steps": 5}}, "^no model Token; there are"),
    ("token", {"token": {"leaves": 5}}, "^ConfigTokenModel has no setting leaves; there are"),
    (None, {"lightgbm": {"width": 5}}, "^BoostedTrees has no setting width; there are"),
    (None, {"gnn": {"width": 0}}, "^width is 0; expected")])
def test_a_model_or_a_setting_that_does_not_exist_is_refused(models, changes, said):
    with pytest.raises(ValueError, match=said):
        choose_recipes(given(xla="ab"), "short", models, changes)
