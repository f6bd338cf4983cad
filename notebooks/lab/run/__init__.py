"""What the steps of a run share besides data and models: the store of results, and the folder of a run."""
from lab.run.code import module_digest
from lab.run.folder import Folder, Run, run_folder, step_of
from lab.run.optional import optional
from lab.run.store import Store, read_kept
from lab.run.unfinished import UNFINISHED, note_unfinished, steps_trained, unfinished

__all__ = [
    "Folder", "Run", "Store", "UNFINISHED", "module_digest", "note_unfinished", "optional", "read_kept", "run_folder",
    "step_of", "steps_trained", "unfinished",
]
