"""Trainings on Kaggle's machines: planned, pushed, watched over several sessions, fetched and checked."""
from lab.jobs.jobs import AT_ONCE, job_name, plan_jobs, read_jobs, renew, watch_jobs
from lab.jobs.results import RESULTS, fetch_checkpoints, publish_jobs

__all__ = [
    "AT_ONCE", "RESULTS", "fetch_checkpoints", "job_name", "plan_jobs", "publish_jobs", "read_jobs", "renew",
    "watch_jobs",
]
