"""The real Kaggle client: download the data, submit, push notebooks and Datasets, train on Kaggle's machines."""
from kit.kaggle.client import COMPETITION, SECRET, TRANSIENT, KaggleError
from kit.kaggle.datasets import push_dataset, wait_for_dataset
from kit.kaggle.downloads import download, download_prepared
from kit.kaggle.jobs import AT_ONCE, job_name, plan_jobs, read_jobs, renew, watch_jobs
from kit.kaggle.notebooks import (
    GPUS,
    MACHINE,
    gpu_quota,
    notebook_output,
    notebook_status,
    push_notebook,
    quota_line,
)
from kit.kaggle.results import RESULTS, fetch_checkpoints, keep_fetched
from kit.kaggle.submissions import submit, wait_for_score

__all__ = [
    "AT_ONCE", "COMPETITION", "GPUS", "MACHINE", "RESULTS", "SECRET", "TRANSIENT", "KaggleError", "download",
    "download_prepared", "fetch_checkpoints", "gpu_quota", "job_name", "keep_fetched", "notebook_output",
    "notebook_status", "plan_jobs", "push_dataset", "push_notebook", "quota_line", "read_jobs", "renew", "submit",
    "wait_for_dataset", "wait_for_score", "watch_jobs",
]
