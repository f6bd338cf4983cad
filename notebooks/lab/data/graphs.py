"""The graphs of a notebook or a run, read once, and what may be known of their runtimes."""
import re
import time

import numpy as np
import pandas as pd

from kit.data import SPLITS, STRANGER, DataError, own_files, target, teaches
from kit.factored import read_graph
from kit.files import as_text
from kit.metrics import score_for
from kit.noise import noise_ceiling
from kit.prune import config_ids, drop_duplicate_configs, fewer_configs, prune
from lab.data.source import data_digest, families_of, left_out, report_problems, source_of, wanted
from lab.data.truth import distinct_tau, each_once

UNQUOTED = re.compile(r"[^\s,:;\"/\\]+")        # matches file stems that need no quotes in a CSV, and no ":" of an ID
MOST_CONFIGS = 2000                             # of a validation program that are ranked, drawn at random


class _Splits(dict):
    """{collection: graphs}, read when they are first asked for."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def __missing__(self, collection):
        self[collection] = found = self.read(collection)
        return found


class Data:
    """The graphs of some collections, each split read once, when it is first asked for.

    Parameters
    ----------
    root : Path
        The prepared folder that `open_data` gives.
    collections : str or sequence of str, optional
        As for `open_data`.
    k_hops : int, optional
        Layout graphs are pruned to this neighbourhood of their configurable nodes. None: they stay whole.
    use_valid : bool
        The validation graphs are graphs to train on, too; then nothing is left to validate with.
    problems : Path, optional
        A JSON-lines file that gets {"path", "reason"} of each file that cannot be used.

    Attributes
    ----------
    train : dict of str to list
        {collection: graphs that a model of it learns from}. Each teaches something, and each of its configurations is
        there once, with its mean runtime. Where the collection has no such graph, its counterparts' graphs stand in:
        of the other search on the same source, else of both searches on the other source.
    valid, test : dict of str to list
        {collection: graphs to rank} with the rows of the files, because a submission ranks rows; of long validation
        files, `MOST_CONFIGS` rows.
    source : str
        "measured programs" or "real files".
    scored : str
        The split that scores are of: "test" of measured programs, else "valid", because only the competition knows the
        runtimes of its test files.
    """

    def __init__(self, root, collections=None, k_hops=None, use_valid=False, problems=None):
        self.root, self.collections, self.k_hops, self.use_valid = root, wanted(collections), k_hops, use_valid
        self.problems, self.source = problems, source_of(root)
        self.scored = "test" if self.source == "measured programs" else "valid"
        # each by collection, and of methods, so that processes which train can be sent all that was read
        self._own, self._teachers, self._files = map(_Splits, (self._read_own, self._find_teachers, self._read_files))
        self.train, self.valid, self.test = map(_Splits, (self._read_train, self._read_valid, self._read_test))
        self._ceilings = _Splits(self._find_ceilings)

    # --- graphs

    def teachers(self, collection):
        """The collections whose training graphs a model of `collection` learns from; [] if there is none."""
        return self._teachers[collection]

    def graphs(self, collections):
        """The training graphs of these collections themselves, one after another."""
        return [graph for c in collections for graph in self._own[c]]

    @property
    def taught(self):
        """The collections with something to train on."""
        return [c for c in self.collections if self.train[c]]

    def named(self, collection, split):
        """{ID: graph} of a split to rank; "train": all that one may train on, with the rows of the files.

        At most `MOST_CONFIGS` rows of a layout graph, except of the test split.
        """
        graphs = {"train": self._files, "valid": self.valid, "test": self.test}[split][collection]
        return {f"{collection}:{graph.graph_id}": graph for graph in graphs}

    def _read(self, collection, split):
        return read_split(self.root, collection, split, self.problems, self.k_hops)

    def _read_own(self, collection):
        own = teaching_graphs(self.root, collection, "train", self.problems, self.k_hops)
        if own and self.use_valid:
            own += teaching_graphs(self.root, collection, "valid", self.problems, self.k_hops)
        return own

    def _read_train(self, collection):
        return self.graphs(self.teachers(collection))

    def _read_files(self, collection):
        return [self._fewer(graph) for split in ("train", "valid") for graph in self._read(collection, split)]

    def _read_test(self, collection):
        return self._read(collection, "test")

    def _read_valid(self, collection):
        return [] if self.use_valid else [self._fewer(graph) for graph in self._read(collection, "valid")]

    def _find_teachers(self, collection):
        for some in _stand_ins(collection):
            if found := [c for c in some if self._own[c]]:
                if found != [collection]:
                    print(f"{collection} is trained on {len(self.graphs(found))} graphs of {' and '.join(found)}")
                return found
            print(f"{' and '.join(some)}: no training graph with two different configurations and runtimes")
        return []

    @staticmethod
    def _fewer(graph):
        return graph if hasattr(graph, "config_feat") else fewer_configs(graph, MOST_CONFIGS)

    # --- what is known of the runtimes

    def runtimes(self, collection, split):
        """{ID: runtime (c,)} of the rows of the files that may be looked at, for tiles divided by the normalizers.

        Graphs with equal runtimes are left out, because nobody can rank their configurations. {} for "test" if only
        the competition knows them.
        """
        if split == "test" and self.scored != "test":
            return {}
        found = {name: target(graph) for name, graph in self.named(collection, split).items()}
        return {name: runtime for name, runtime in found.items() if len(np.unique(runtime)) > 1}

    def truth(self, collection, split=None):
        """{ID: runtime (c,)} that `score` compares costs with; of the split `scored`, unless another one is named.

        Of measured programs, each configuration counts once: its first row has its mean runtime, its other rows NaN.
        Of the competition's files, each row counts, as it does there.
        """
        split = split or self.scored
        known, graphs = self.runtimes(collection, split), self.named(collection, split)
        return {i: each_once(graphs[i]) for i in known} if self.counts_once(collection) else known

    def score(self, collection):
        """How costs (c,) rank a graph of `truth` (c,): a function of both; higher is better.

        The competition's score; of measured programs, Kendall's tau over distinct configurations.
        """
        return distinct_tau if self.counts_once(collection) else score_for(collection, strict=True)

    def counts_once(self, collection):
        """Whether scores count each configuration of a graph once, or each row of its file."""
        return collection != "tile:xla" and self.source == "measured programs"

    def families(self, collection, split=None):
        """{ID: family} of a split, `scored` by default; of the competition's files, each graph is one of its own."""
        names = [*self.named(collection, split or self.scored)]
        if self.source != "measured programs":
            return dict(zip(names, names))
        known = families_of(self.root)
        return {i: known.get(i.rpartition(":")[2], i) for i in names}

    def ceilings(self, collection):
        """{ID: expected score of a model that knows each mean runtime} of the graphs that scores are of.

        Estimated from configurations that a file measures more than once; NaN without them. {} for tiles.
        """
        return self._ceilings[collection]

    def _find_ceilings(self, collection):
        graphs = {} if collection == "tile:xla" else self.named(collection, self.scored)
        return {i: tau_ceiling(graphs[i], self.counts_once(collection))
                for i in self.runtimes(collection, self.scored) if i in graphs}

    # --- for tables, and for runs

    def table(self):
        """A row per collection: what is trained on, and what is ranked."""
        rows = [{"collection": c, "learns from": ", ".join(self.teachers(c)), "graphs": len(self.train[c]),
                 "configurations": sum(len(g.config_runtime) for g in self.train[c]),
                 "median nodes": np.median([len(g.node_opcode) for g in self.train[c]] or np.nan),
                 "validation graphs": len(self.valid[c]), "test graphs": len(self.test[c]), "data": self.source}
                for c in self.collections]
        return pd.DataFrame(rows)

    def left_out(self):
        """The files that could not be prepared, as pairs of file name and reason."""
        return left_out(self.root, self.collections)

    def missing(self):
        """The collections without any file."""
        damaged = {name.rpartition("/")[0].rpartition("/")[0].replace("/", ":") for name, _ in self.left_out()}
        return [c for c in self.collections if c not in damaged
                and not any(own_files(self.root, c, split)[0] for split in SPLITS)]

    def digest(self, collection, split):
        """A digest of the content of a split as it is now."""
        return data_digest(self.root, collection, split)


def tau_ceiling(graph, once, draws=20):
    """Expected tau of a model that knows each mean runtime, over all rows, or with each configuration `once`."""
    if not once:
        return noise_ceiling(graph.config_runtime, config_ids(graph), draws=draws).mean
    return noise_ceiling(graph.config_runtime, config_ids(graph), draws=draws, score=lambda cost, runtime: distinct_tau(
        cost, each_once(graph._replace(config_runtime=runtime)))).mean


def _stand_ins(collection):
    """Collections to learn from, in the order in which they are tried."""
    if collection == "tile:xla":
        return [[collection]]
    _, source, search = collection.split(":")
    other, opposite = {"xla": "nlp", "nlp": "xla"}[source], {"random": "default", "default": "random"}[search]
    return [[collection], [f"layout:{source}:{opposite}"], [f"layout:{other}:{search}", f"layout:{other}:{opposite}"]]


def read_split(data_root, collection, split, problems=None, k_hops=None):
    """Read every file of a split; a damaged file is reported and left out.

    Files whose names cannot stand in a submission or in predictions are left out, too. `problems`: a JSON-lines file
    that gets {"path", "reason"} per left-out file. `k_hops`: prune each layout graph to this neighbourhood when it is
    read, so that a split takes little memory.
    """
    (own, strangers), graphs, start = own_files(data_root, collection, split), [], time.monotonic()
    paths, shown = sorted(own + strangers), start
    for number, path in enumerate(paths, 1):
        try:
            graph = _read_graph(path, collection, split, path in strangers)
            graphs.append(graph if k_hops is None or collection == "tile:xla" else prune(graph, k_hops))
        except DataError as fault:
            print(f"left out: {fault}")
            if problems is not None:
                report_problems(problems, as_text(path), [str(fault)])
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{collection} {split}: read {number} of {len(paths)} files in {shown - start:.0f} s")
    return graphs


def _read_graph(path, collection, split, stranger=False):
    """Read one file; DataError if it is damaged or cannot be used in its split."""
    if as_text(path.name) != path.name:
        raise DataError(f"{as_text(path)}: its name is not UTF-8; rename the file")
    if split == "test" and not UNQUOTED.fullmatch(path.stem):
        raise DataError(f"{path}: its name cannot stand in a submission; expected no space, comma, colon, semicolon or "
                        "quote; if it is a copy, delete it")
    if split == "valid" and ":" in path.stem:
        raise DataError(f"{path}: its name holds a colon, which separates the collection from the name in predictions; "
                        "rename the file")
    if stranger:
        raise DataError(f"{path}: {STRANGER}")
    return read_graph(path, collection, split)


def teaching_graphs(data_root, collection, split, problems=None, k_hops=None):
    """The graphs of a split that `teaches` accepts, layout graphs deduplicated; arguments are as for `read_split`."""
    graphs = read_split(data_root, collection, split, problems, k_hops)
    if collection != "tile:xla":
        graphs = [drop_duplicate_configs(g)[0] for g in graphs]
    return [g for g in graphs if teaches(g)]
