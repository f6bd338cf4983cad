"""Every recipe can be trained as it stands."""
from dataclasses import replace

import pytest
from drawn import drawn_layout, drawn_tile

from kit.data import COLLECTIONS
from kit.predict import predict
from kit.recipes import SCALES, recipes_for
from kit.train import train


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


def test_of_few_programs_the_token_model_learns_only_opcodes_and_agreement():
    shapes = [recipes_for("layout:xla:default", programs=p)["token"].shape for p in (2, 3, 4, None)]
    assert [s.features or s.digits or s.graph_blocks > 0 for s in shapes] == [False, False, True, True]
    assert all(s.agreement and s.pairs for s in shapes)
