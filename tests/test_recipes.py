"""Every recipe can be trained as it stands."""
from dataclasses import asdict, replace

import pytest
from drawn import drawn_layout, drawn_tile

from kit.data import COLLECTIONS
from kit.losses import pairwise_hinge_loss, standardised_hinge_loss
from kit.models import SegmentGNN, SegmentGNNSettings
from kit.predict import predict
from kit.recipes import SCALES, recipes_for
from kit.train import train
from lab.run.members import Material, join_together


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
    with pytest.raises(ValueError, match="scale is 'large'; expected 'short' or 'quick' or 'full'"):
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
                plan = replace(whole[name].settings, steps=2 * whole[name].settings.steps)
                assert one == whole[name]._replace(network=SegmentGNN, settings=plan, shape=SegmentGNNSettings(
                    **shape, segment_nodes=15, margin=1))
    assert names == [[]] * 3 + [["gnn"]] * 12
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


def test_only_the_short_recipe_of_several_programs_trains_one_token_model_for_all():
    found = {(scale, programs): recipes_for("layout:xla:random", scale, programs) for scale in SCALES
             for programs in (3, 4)}
    assert [key for key, own in found.items() if own["token"].together] == [("short", 4)]
    assert not any(own["gnn"].together or own["lightgbm"].together != own["token"].together for own in found.values())
    losses = {key: own["token"].loss for key, own in found.items()}
    assert {key for key, loss in losses.items() if loss is standardised_hinge_loss} == {("short", 4), ("quick", 4)}
    assert {*losses.values()} == {standardised_hinge_loss, pairwise_hinge_loss}


def test_one_model_takes_the_place_of_several_and_ranks_what_they_would_rank():
    one, two, three = (("layout:xla:random",), ("layout:xla:default",), ("layout:nlp:random",))
    own, few = recipes_for(one[0], "short", 20), recipes_for(three[0], "short", 2)
    materials = {key: Material([f"graph of {key[0]}"], [], max, {"test": {f"{key[0]}:a": key}})
                 for key in (one, two, three)}
    kinds, found = join_together({one: own, two: own, three: few}, materials)
    assert {key: list(recipes) for key, recipes in kinds.items()} == {
        one: ["gnn"], two: ["gnn"], three: ["token", "lightgbm", "gnn"], one + two: ["token", "lightgbm"]}
    assert kinds[one + two]["token"] == own["token"] and own["token"].settings.steps == 850
    whole = found.pop(one + two)
    assert found == materials and whole.graphs == ["graph of layout:xla:random", "graph of layout:xla:default"]
    assert whole.ranked == {"test": {"layout:xla:random:a": one, "layout:xla:default:a": two}}
    for alone in ({one: own}, {one: own, three: few}):
        assert join_together(alone, materials) == (alone, materials)


def test_a_model_of_all_collections_leaves_those_alone_that_are_trained_on_the_same_collections():
    """Where xla:random is trained on itself, and nlp:random on both collections of xla, because it has no runtimes."""
    one, both = ("layout:xla:random",), ("layout:xla:random", "layout:xla:default")
    own, targets = recipes_for(one[0], "short", 20), {one: "layout:xla:random:a", both: "layout:nlp:random:a"}
    materials = {key: Material([f"graph of {c}" for c in key], [], max, {"test": {targets[key]: key}}, {})
                 for key in (one, both)}
    kinds, found = join_together({one: own, both: own}, materials)
    assert {key: list(recipes) for key, recipes in kinds.items()} == {
        one: ["gnn"], both: ["gnn"], one + both: ["token", "lightgbm"]}
    whole = found.pop(one + both)
    assert found == materials and whole.ranked == {"test": {graph: key for key, graph in targets.items()}}
    assert [f"graph of {c}" for c in one + both] == whole.graphs
