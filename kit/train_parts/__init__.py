"""What the training loop in `kit/train.py` is made of: sampling, devices, deadlines, records."""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from kit.train_parts.checkpoints import CheckpointError, load_checkpoint, read_checkpoint, save_checkpoint
    from kit.train_parts.deadlines import KAGGLE_HOURS, Deadline, find_deadline
    from kit.train_parts.devices import check_device, find_device
    from kit.train_parts.records import device_name, processor_name, run_record, versions
    from kit.train_parts.sampling import costs_of, draw_step, make_tasks

__getattr__, __all__ = lazy_names(__name__, {
    "checkpoints": "CheckpointError load_checkpoint read_checkpoint save_checkpoint",
    "deadlines": "KAGGLE_HOURS Deadline find_deadline",
    "devices": "check_device find_device",
    "records": "device_name processor_name run_record versions",
    "sampling": "costs_of draw_step make_tasks"})
