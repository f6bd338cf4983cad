"""What the training loop in `kit/train.py` is made of: sampling, devices, deadlines, records."""
from kit.training.checkpoints import CheckpointError, load_checkpoint, read_checkpoint, save_checkpoint
from kit.training.deadlines import KAGGLE_HOURS, Deadline, find_deadline
from kit.training.devices import check_device, find_device
from kit.training.records import device_name, processor_name, run_record, versions
from kit.training.sampling import costs_of, draw_step, make_tasks

__all__ = [
    "KAGGLE_HOURS", "CheckpointError", "Deadline", "check_device", "costs_of", "device_name", "draw_step",
    "find_deadline", "find_device", "load_checkpoint", "make_tasks", "processor_name", "read_checkpoint", "run_record",
    "save_checkpoint", "versions",
]
