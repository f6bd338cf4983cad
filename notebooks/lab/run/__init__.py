"""What the steps of a run share besides data and models: the store of results, the folder of a run, scores."""
from lab.run.code import module_digest
from lab.run.folder import Folder, Prediction, Run, run_folder, step_of
from lab.run.scoring import SCORE_COLUMNS, lead_row, mean_ceiling, score_row, scores_of
from lab.run.store import Store, read_kept
from lab.run.unfinished import UNFINISHED, note_unfinished, steps_trained, unfinished

__all__ = [
    "Folder", "Prediction", "Run", "SCORE_COLUMNS", "Store", "UNFINISHED", "lead_row", "mean_ceiling",
    "module_digest", "note_unfinished", "read_kept", "run_folder", "score_row", "scores_of", "step_of",
    "steps_trained", "unfinished",
]
