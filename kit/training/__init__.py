"""What the training loop in `kit/train.py` is made of: sampling, devices, deadlines, records."""
from typing import TYPE_CHECKING

from kit.lazy import lazy_names

if TYPE_CHECKING:                        # for editors, and for digests of code
    from kit.training.checkpoints import CheckpointError, load_checkpoint, read_checkpoint, save_checkpoint
    from kit.training.deadlines import KAGGLE_HOURS, Deadline, find_deadline
    from kit.training.devices import check_device, find_device
    from kit.training.records import device_name, processor_name, run_record, versions
    from kit.training.sampling import costs_of, draw_step, make_tasks

__getattr__, __all__ = lazy_names(__name__, {
    "checkpoints": "CheckpointError load_checkpoint read_checkpoint save_checkpoint",
    "deadlines": "KAGGLE_HOURS Deadline find_deadline",
    "devices": "check_device find_device",
    "records": "device_name processor_name run_record versions",
    "sampling": "costs_of draw_step make_tasks"})
