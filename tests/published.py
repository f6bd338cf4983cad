"""The folder of a run as notebooks 03, 05 and 06 leave it, made without them from predictions that a test draws."""
import contextlib
import io

import pandas as pd

from kit.files import write_json
from lab.run import Prediction, Run


def steps_of(collection):
    """The steps that lead to a submission of a collection."""
    return "03_train_tile" if collection == "tile:xla" else "04_train_layout", "05_ensemble", "06_submit"


def publish(out, root, collection, costs, model="", sources=(), kind="tile", seeds=1, **settings):
    """Publish costs {split: {ID: cost}} as those of a few models, and of their ensemble -> the Run of the ensemble.

    `out`, `root`, `sources`, `settings`: as of `Run` and `Run.publish`. `model`: the checkpoint of the first seed.
    """
    trains, combines, _ = steps_of(collection)
    with contextlib.redirect_stdout(io.StringIO()):
        run = Run(trains, root, out, collections=[collection])
        run.publish([Prediction(collection, f"{kind}_seed{seed}", split, costs[split], "" if seed else model)
                     for seed in range(seeds) for split in costs], sources, **settings)
        run = Run(combines, root, out, collections=[collection])
    run.section(trains, collection)
    run.publish([Prediction(collection, "ensemble", split, costs[split]) for split in costs], how="mean_zscore")
    run.save("weights.json", lambda path: write_json(path, {collection: {kind: 1.0}}))
    run.save_table("scores.csv", pd.DataFrame([{
        "collection": collection, "model": "ensemble", "score": 0.5, "low": 0.4, "high": 0.6, "graphs": 1,
        "seeds": seeds, "split": "valid, real files"}]))
    run.save_table("graph_scores.csv", pd.DataFrame(columns=["collection", "graph", "score"]))
    return run


def submit(out, root, collection):
    """Write the submission of what was published -> the Run of notebook 06, the path of the CSV."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = Run("06_submit", root, out, collections=[collection])
        return run, run.save_submission(run.costs("05_ensemble", [collection]))
