"""The snippets of notebooks/own_model.md run as they are, one after another, and their files become members."""
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from lab.run.gather import checked, load_costs

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "notebooks" / "own_model.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")       # of PyTorch Geometric, as it is imported
def test_the_snippets_run_and_their_costs_can_be_combined(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    named, has_geometric = {}, importlib.util.find_spec("torch_geometric") is not None
    for code in SNIPPETS:
        if has_geometric or "torch_geometric" not in code:
            exec(code.replace('find_data_root("notebooks', f'find_data_root("{PROJECT.as_posix()}/notebooks'), named)
    members = ["sklearn", "ranker", *["pyg"] * has_geometric]
    for member in members:
        for split in ("valid", "test"):
            path = Path("mine", "layout_xla_random", f"{member}.{split}.npz")
            costs = checked(load_costs(path), path, "layout:xla:random")
            assert {name: len(cost) for name, cost in costs.items()} == {
                f"layout:xla:random:{graph.graph_id}": len(graph.config_runtime) for graph in named["read"][split]}
    taus = re.findall(r"^(\w+) test (\S+)$", capsys.readouterr().out, re.M)
    assert [name for name, _ in taus] == members
    for name, tau in taus:
        assert float(tau) > (0.3 if name == "pyg" else 0.45)


def test_the_page_says_how_its_files_are_given_to_the_run():
    assert "-p predictions_from=mine" in PAGE and len(SNIPPETS) == 4
    assert np.all([code.count("\n") <= 36 for code in SNIPPETS])


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", PAGE))
def test_each_link_leads_somewhere(link):
    assert (PROJECT / "notebooks" / link).exists()
