"""What the training loop in `kit/train.py` is made of: sampling, processes, deadlines, records."""
from kit.training.checkpoints import CheckpointError, load_checkpoint, read_checkpoint, save_checkpoint
from kit.training.deadlines import KAGGLE_HOURS, Deadline, find_deadline, is_over
from kit.training.pool import default_workers, run_jobs
from kit.training.processes import add_up, add_up_gradients, check_gpus, find_device, join_team
from kit.training.records import device_name, processor_name, run_record, versions
from kit.training.sampling import costs_of, draw_step, make_tasks

__all__ = [
    "KAGGLE_HOURS", "CheckpointError", "Deadline", "add_up", "add_up_gradients", "check_gpus", "costs_of",
    "default_workers", "device_name", "draw_step", "find_deadline", "find_device", "is_over", "join_team",
    "load_checkpoint", "make_tasks", "processor_name", "read_checkpoint", "run_jobs", "run_record",
    "save_checkpoint", "versions",
]
