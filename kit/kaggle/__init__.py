"""The real Kaggle client: download the data, submit, push notebooks and Datasets."""
from kit.kaggle.client import COMPETITION, SECRET, TRANSIENT, KaggleError
from kit.kaggle.datasets import push_dataset, wait_for_dataset
from kit.kaggle.downloads import download, download_prepared
from kit.kaggle.notebooks import (
    GPUS,
    MACHINE,
    gpu_quota,
    notebook_output,
    notebook_status,
    push_notebook,
    quota_line,
)
from kit.kaggle.submissions import submit, wait_for_score

__all__ = [
    "COMPETITION", "GPUS", "MACHINE", "SECRET", "TRANSIENT", "KaggleError", "download", "download_prepared",
    "gpu_quota", "notebook_output", "notebook_status", "push_dataset", "push_notebook", "quota_line", "submit",
    "wait_for_dataset", "wait_for_score",
]
