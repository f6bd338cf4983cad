"""The snippets of notebooks/own_model.md run as they are, one after another, and their files become members."""
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from lab.predictions import read_predictions
from lab.scores import score_table

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "notebooks" / "own_model.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")       # of PyTorch Geometric, as it is imported
def test_the_snippets_run_and_their_models_join_by_one_line_or_from_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named, has_geometric = {}, importlib.util.find_spec("torch_geometric") is not None
    for code in SNIPPETS:
        if has_geometric or "torch_geometric" not in code:
            exec(code, named)
    made, data = named["made"], named["data"]
    members = ["sklearn", "ranker", *["pyg"] * has_geometric]
    scores = score_table(made, data)[0].set_index("model")["score"]
    assert [*scores.index] == members
    for name, score in scores.items():
        assert score > (0.1 if name == "pyg" else 0.2)
    found = read_predictions(named["run"], data, "mine")
    assert [row.member for row in found.rows if row.split == "test"] == sorted(members)
    for row in found.rows:
        assert {name: len(cost) for name, cost in row.costs.items()} == {
            name: len(graph.config_runtime) for name, graph in data.named(row.collection, row.split).items()}


def test_the_page_says_how_its_files_are_given_to_the_run():
    assert "-p predictions_from=mine" in PAGE and len(SNIPPETS) == 5
    assert np.all([code.count("\n") <= 42 for code in SNIPPETS])


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", PAGE))
def test_each_link_leads_somewhere(link):
    assert (PROJECT / "notebooks" / link).exists()
