"""Train on Kaggle's machines what 03 and 04 would train here; `run.py --on kaggle` combines the predictions afterwards.

One notebook with the kit inside is pushed per collection and group of seeds, and its predictions are fetched.
OUT/.run/kaggle.json notes what was pushed, so that the same command resumes, also after OUT has moved. A run in
another folder has notebooks of its own.
"""
import secrets

import nbformat
from bundle import bundle, write_bundle

from kit.kaggle import RESULTS, job_name, keep_fetched, read_jobs, renew, watch_jobs
from kit.run import note_settings


def train_on_kaggle(planned, parameters, owner, out, root, is_sample, fresh=False, datasets=()):
    """Push, watch and fetch -> ({name: job}, [(owner/name, why it failed)]).

    `planned`: from `plan_jobs`. `parameters`: {notebook of tiles, notebook of layouts: {name: value}}; folders,
    collections and seeds are set here. `datasets`: Kaggle Datasets "owner/slug" that each notebook gets.
    """
    store, jobs, notebooks = out / ".run" / "kaggle", {}, {}
    known = read_jobs(store.with_suffix(".json"))
    # each folder of a run has a mark of its own, so that the same plan in another folder has other notebooks
    mark = next((job["run"] for job in known.values() if "run" in job), secrets.token_hex(8))
    for job in planned:
        path = min(parameters) if job["collection"].startswith("tile") else max(parameters)
        given = {**parameters[path], "out_dir": RESULTS, "collections": [job["collection"]],
                 "first_seed": job["first_seed"], "data_root": "sample" if is_sample else None, "seeds": job["seeds"]}
        book = bundle({path: given}, real_only=not is_sample, datasets=datasets)
        name = job_name(job, mark + owner + nbformat.writes(book))
        jobs[name], notebooks[name] = {**job, "run": mark}, write_bundle(store, book, name, owner, datasets)
    renew(jobs, known, owner, out, fresh)
    failed = watch_jobs(jobs, notebooks, out, root, store.with_suffix(".json"), known)
    keep_fetched(jobs, out)
    about = {job["ref"]: job["collection"] for job in jobs.values()}
    came = {job["collection"] for job in jobs.values() if job["files"]}
    old = {name for name in {*about.values()} - came
           if any(out.glob(f"predictions/{name.replace(':', '_')}/*.npz"))}
    failed = [(ref, why + f"\n    the predictions here for {about[ref]} are of an earlier run" * (about[ref] in old))
              for ref, why in failed]
    note_settings(out, "on_kaggle", {job["ref"]: {k: job[k] for k in ("collection", "first_seed", "seeds", "state")}
                                     for job in jobs.values()}
                  | {path.stem: {k: v for k, v in own.items() if k not in ("data_root", "out_dir", "collections")}
                     for path, own in parameters.items()})
    return jobs, failed
