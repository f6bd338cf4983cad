"""How fast layouts get with few true measurements, on programs that no model has seen. Prints two tables.

    python notebooks/lab/studies/true_searches.py [--programs A,B] [--budgets 5,10,30] [--search NAME ...] [--out DIR]

Each search starts from nothing and may measure `budget` configurations on this machine. What it takes for the fastest,
or the default if nothing looked faster, then runs again beside the default in new processes: only these times count.
The learned model is the token model, trained on the `random` files of the training programs. Searches of one program
share a journal: the first measurement of a configuration is the same for all of them, and a killed study goes on. The
rows are also written to `measured_search.csv`. JAX is needed, and nothing else should run meanwhile.
"""
import argparse
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from tqdm import tqdm

PROJECT = Path(__file__).resolve().parents[3]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")
from kit.files import whole_file  # noqa: E402
from kit.noise import bootstrap_interval  # noqa: E402
from kit.programs import Bench, BenchSettings  # noqa: E402
from kit.programs.tune import PROCESSES, deviations, relative, speedup_of  # noqa: E402
from kit.prune import prune  # noqa: E402
from kit.recipes import recipes_for  # noqa: E402
from kit.search import (  # noqa: E402
    droplet,
    explore_then_droplet,
    genetic,
    guided,
    on_codes,
    random_search,
    relaxed_token_cost,
)
from lab.data import open_data  # noqa: E402
from lab.measured import PROGRAMS  # noqa: E402
from lab.measured.files import traced  # noqa: E402
from lab.run.store import Store  # noqa: E402
from lab.studies.new_families import taught_programs  # noqa: E402
from lab.training import train_or_read, training_name  # noqa: E402
from lab.training.plan import with_seed  # noqa: E402

SEEDS = 3                        # networks whose mean cost guides a search
ROUNDS = 3                       # of default and winners, in each of the new processes
QUERIES = 4000                   # of the model
STEADY = 1.5                     # ratio of the ends of an interval, above which a program is left out of the means
# one program of each family that no training program has, then their relatives
UNSEEN = ("vgg_b1", "unet_b1", "inception_b2", "convnext_b1", "mixer_b2", "gru_b16", "gcn_n1024", "vit_b2", "llama_b2",
          "performer_b2", "gpt_scan_b2", "vgg_nchw", "unet_nchw", "gru_both", "gcn_train")


def from_the_best(objective, dims, budget, rng, model):
    """Droplet Search from the configuration that the model likes best."""
    start = genetic(model, dims, QUERIES, rng).best
    return droplet(objective, dims, budget, rng, start=start, batch=4)


def strategies(learned):
    """{name: search(objective, dims, budget, rng)}."""
    explore = partial(explore_then_droplet, confirm=2, queries=QUERIES)
    return {
        "random": random_search,
        "random, the learned model's first": partial(guided, model=learned, strategy=random_search, queries=QUERIES),
        "droplet from the default": lambda objective, dims, *rest: droplet(objective, dims, *rest, start=0 * dims,
                                                                           batch=4),
        "droplet from the learned model's best": partial(from_the_best, model=learned),
        "explore-then-droplet": explore,
        "explore-then-droplet, count of deviations": partial(explore, model=deviations),
        "explore-then-droplet, learned model": partial(explore, model=learned)}


def trained_models(store):
    """Token models that learned from the measured training programs, one per seed."""
    graphs = taught_programs(open_data("measured"), "random")
    recipe, found = recipes_for("layout:xla:random", programs=len(graphs))["token"], []
    for seed in range(SEEDS):
        one = with_seed(recipe, seed)
        name = training_name(store, f"measured random token model {seed}", one, graphs)
        found.append(train_or_read(store, name, one, graphs, report=print)[0])
    return found


class Journal:
    """Measurements of one program, each a line of a file: read if they were made before, else made and kept."""

    def __init__(self, path):
        self.path, self.rows = path, {}
        if path.exists():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):                             # else a killed process was writing it
                    row = json.loads(line)
                    self.rows[tuple(row["what"])] = row["found"]
            path.write_text("".join(self._line(what, found) for what, found in self.rows.items()))

    def made(self, what, make):
        """`what` is a tuple of texts and numbers."""
        if what not in self.rows:
            self.rows[what] = make()
            with open(self.path, "a") as file:
                file.write(self._line(what, self.rows[what]))
        return self.rows[what]

    @staticmethod
    def _line(what, found):
        return json.dumps({"what": what, "found": found}) + "\n"


def search_program(name, budgets, models, folder, bench, searches=None):
    """The searches of one program, and what their winners take -> rows for the table; `searches` None: all."""
    program, args = traced(name)
    graph, journal = prune(program.graph, 1), Journal(folder / f"{name}.jsonl")
    costs_of = [on_codes(relaxed_token_cost(model, model.prepare(graph)), program.dims) for model in models]

    def learned(codes):
        return np.mean([cost(codes) for cost in costs_of], axis=0)

    with Bench(program, args, bench) as place:
        rows, winners = [], {tuple(0 * program.dims): (1.0, 1.0, 1.0)}
        chosen = {title: one for title, one in strategies(learned).items() if searches is None or title in searches}
        for title, search in tqdm(chosen.items(), desc=name):
            for budget in budgets:
                found = search(timed(place, journal), program.dims, budget, np.random.default_rng(0))
                winner = tuple((found.best if found.best_cost < 1 else 0 * found.best).tolist())
                rows.append((name, PROGRAMS[name].family, title, budget, found.measurements, winner))
                place.forget()
        todo = sorted({row[-1] for row in rows} - set(winners))
        logs = np.array([journal.made((number, "process", *map(str, todo)), lambda: run_again(place, todo))
                         for number in range(PROCESSES)]).reshape(PROCESSES, -1)
    for code, own in zip(todo, logs.T):
        speedup, interval = speedup_of(own)
        winners[code] = speedup, *interval
    return [(*row, *winners[winner]) for *row, winner in rows]


def timed(place, journal):
    """The objective of one search: time / the default's of each configuration."""
    asked = Counter()

    def objective(points):
        found = []
        for code in map(tuple, points.tolist()):
            asked[code] += 1                                        # the second time is another measurement
            found.append(journal.made((*code, "time", asked[code]), partial(time_once, place, code)))
        return np.array(found)
    return objective


def time_once(place, code):
    """Time of a configuration / the default's; infinite if it fails."""
    return relative(place, code)[0]


def run_again(place, codes):
    """Logarithms of default / winner for each of the winners, medians of rounds in a new process."""
    place.restart()
    return [-float(np.median(np.log([relative(place, code)[0] for _ in range(ROUNDS)]))) for code in codes]


COLUMNS = "program", "family", "strategy", "budget", "measurements", "speedup", "low", "high"


def steady(table):
    """A table without the programs where one winner's new processes disagree by far, and the names of these."""
    rough = table.filter(pl.col("high") > STEADY * pl.col("low"))["program"].unique().sort().to_list()
    return table.filter(~pl.col("program").is_in(rough)), rough


def speedups(table):
    """Lines of Markdown: the geometric mean of the speed-ups at each budget, and that of the ratio to random search."""
    budgets = table["budget"].unique(maintain_order=True).to_list()
    lines = [f"| strategy | {' | '.join(f'{b} measurements' for b in budgets)} | surely faster with "
             f"{budgets[-1]}, of {table['program'].n_unique()} |",
             "|---" * (len(budgets) + 2) + "|"]
    for strategy in table["strategy"].unique(maintain_order=True):
        mine = table.filter(strategy=strategy)
        cells = []
        for budget in budgets:
            own, random = (np.log(table.filter(strategy=one, budget=budget).sort("program")["speedup"].to_numpy())
                           for one in (strategy, "random"))
            low, high = np.exp(bootstrap_interval(own))
            ahead = np.exp([(own - random).mean(), *bootstrap_interval(own - random)])
            cells.append(f"{np.exp(own.mean()):.3f} ({low:.3f} to {high:.3f})"
                         + ("" if strategy == "random" else "; over random {:.3f} ({:.3f} to {:.3f})".format(*ahead)))
        sure = mine.filter(pl.col("budget") == budgets[-1], pl.col("low") > 1).height
        lines.append(f"| {strategy} | {' | '.join(cells)} | {sure} |")
    return "\n".join(lines)


def by_program(table, strategy, budget):
    """Lines of Markdown: what one search gains on each program."""
    lines = ["| program | family | measurements | speed-up over XLA's default |", "|---|---|---|---|"]
    chosen = table.filter(strategy=strategy, budget=budget).sort("speedup", descending=True)
    for row in chosen.iter_rows(named=True):
        lines.append("| `{program}` | {family} | {measurements} | {speedup:.3f} ({low:.3f} to {high:.3f}) |"
                     .format(**row))
    return "\n".join(lines)


def main(argv=None):
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=partial(str.split, sep=","), default=UNSEEN)
    parser.add_argument("--budgets", type=lambda text: [*map(int, text.split(","))], default=[5, 10, 30])
    parser.add_argument("--search", action="append", choices=[*strategies(None)], metavar="NAME",
                        help=f"may be repeated; without: all: {'; '.join(strategies(None))}")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a measurement, at most")
    parser.add_argument("--out", type=Path, default=PROJECT / "submissions" / "measured-search")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.programs if name not in UNSEEN]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(UNSEEN)}")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    models, rows = trained_models(Store(args.out / "store")), []
    for name in args.programs:
        rows += search_program(name, args.budgets, models, args.out, BenchSettings(seconds=args.seconds),
                               args.search)
        table = pl.DataFrame(rows, COLUMNS, orient="row")
        with whole_file(args.out / "measured_search.csv") as part:
            table.write_csv(part)
    kept, rough = steady(table)
    print(f"left out of the means, because new processes disagree: {', '.join(rough) or 'none'}\n")
    print(speedups(kept), by_program(table, "explore-then-droplet, learned model", max(args.budgets)), sep="\n\n")


if __name__ == "__main__":
    main()
