"""Train on Kaggle's machines what 03 and 04 would train here; `run.py --on kaggle` combines the predictions afterwards.

One notebook with the kit inside is pushed per collection and group of seeds, and its results are fetched.
OUT/.run/kaggle.json notes what was pushed, so that the same command resumes, also after OUT has moved. A run in
another folder has notebooks of its own.
"""
import secrets

import nbformat
from bundle import bundle, kernel_metadata, write_bundle
from dry_run import hours_of, show_plan
from steps import LIMITS

from kit.kaggle import MACHINE, quota_line, wait_for_dataset
from lab.jobs import AT_ONCE, RESULTS, job_name, publish_jobs, read_jobs, renew, watch_jobs
from lab.run import Folder
from lab.run.folder import step_of


def notebooks_of(planned, parameters, owner, mark, datasets=(), machine=MACHINE):
    """The notebooks of some jobs -> {name: (job, notebook, its kernel-metadata.json, {path: its parameters})}.

    `mark`: of the folder of the run, so that the same plan in another folder has notebooks of its own.
    """
    found = {}
    for job in planned:
        path = min(parameters) if job["collection"].startswith("tile") else max(parameters)
        given = {**parameters[path], "out_dir": RESULTS, "collections": [job["collection"]],
                 "first_seed": job["first_seed"], "data_root": None, "seeds": job["seeds"]}
        book, plain = (bundle({path: own}, datasets=datasets, machine=machine)
                       for own in (given, {key: one for key, one in given.items() if key not in LIMITS}))
        name = job_name(job, mark + owner + nbformat.writes(plain))
        found[name] = {**job, "run": mark}, book, kernel_metadata(name, owner, datasets, machine), {path: given}
    return found


def marked(known):
    """The mark of the folder of a run, from `read_jobs`; a new one where nothing was pushed yet."""
    return next((job["run"] for job in known.values() if "run" in job), secrets.token_hex(8))


def show_push(planned, parameters, owner, out, root, datasets=(), machine=MACHINE):
    """Print what `train_on_kaggle` would push, and do nothing. `out`: the folder of the run, or None."""
    known = read_jobs(out / ".run" / "kaggle.json") if out else {}
    found = notebooks_of(planned, parameters, owner, marked(known), datasets, machine)
    jobs = {name: dict(job) for name, (job, *_) in found.items()}
    renew(jobs, known, owner, out, root)
    new = [name for name, job in jobs.items() if job["state"] == "planned"]
    for job in jobs.values():
        if job["state"] != "planned":
            print(f"not pushed again: {job['ref']}: {job['state']}")
    print(f"nothing is pushed now; notebooks without --dry-run: {len(new)}, at most {AT_ONCE} at a time")
    # without earlier pushes, the mark is drawn at the first push, and with it the end of each name
    refs = {name: jobs[name]["ref"] if known else f"{jobs[name]['ref'][:-8]}*" for name in new}
    show_plan([(found[name][2] | {"id": refs[name]}, found[name][3]) for name in new])


def train_on_kaggle(planned, parameters, owner, out, root, datasets=(), machine=MACHINE):
    """Push, watch, fetch, and publish in the folder of the run -> ({name: job}, [(owner/name, why it failed)]).

    `planned`: from `plan_jobs`. `parameters`: {notebook of tiles, notebook of layouts: {name: value}}; folders,
    collections and seeds are set here. `datasets`, `machine`: as in `kernel_metadata`.
    """
    store = out / ".run" / "kaggle"
    known = read_jobs(store.with_suffix(".json"))
    found = notebooks_of(planned, parameters, owner, marked(known), datasets, machine)
    jobs = {name: job for name, (job, *_) in found.items()}
    notebooks = {name: write_bundle(store, book, about) for name, (_, book, about, _) in found.items()}
    renew(jobs, known, owner, out, root)
    waiting = [found[name][3] for name, job in jobs.items() if job["state"] == "planned"]
    if waiting and machine:
        hours = [hours_of(given, machine) for given in waiting]
        print(quota_line(None if None in hours else sum(hours)), flush=True)
    for name in datasets if waiting else ():
        wait_for_dataset(name)                   # else a pushed notebook would start without its files
    failed = watch_jobs(jobs, notebooks, out, root, store.with_suffix(".json"), known)
    hidden = ("data_root", "out_dir", "collections", *LIMITS)
    publish_jobs(jobs, out, root, {path.stem: {name: value for name, value in own.items() if name not in hidden}
                                   for path, own in parameters.items()})
    earlier = earlier_results(jobs, Folder(out, root))
    about = {job["ref"]: job["collection"] for job in jobs.values()}
    return jobs, [(ref, why + f"\n    the predictions here for {about[ref]} are of an earlier run"
                   * (about.get(ref) in earlier)) for ref, why in failed]


def earlier_results(jobs, folder):
    """The collections of which jobs brought nothing, but earlier results are there; those out of date are taken out."""
    earlier = set()
    came = {job["collection"] for job in jobs.values() if job["section"]}
    for collection in {job["collection"] for job in jobs.values()} - came:
        step = step_of(collection)
        record = folder.record(step)
        section = record["sections"].get(collection)
        if section and folder.section_fault(step, collection, section):
            folder.write_record(step, {**record, "sections": {
                c: one for c, one in record["sections"].items() if c != collection}})
        elif section and section["costs"]:
            earlier.add(collection)
    return earlier
