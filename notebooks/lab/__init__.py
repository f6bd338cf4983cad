"""What the notebooks share: data, pictures, the store of a run, the ledger, jobs on Kaggle, kernels, studies."""
from pathlib import Path

# where tables and programs lie that come with the notebooks: beside the notebooks, or where a bundle is unpacked.
# A notebook may be started from any folder
BESIDE = Path(__file__).resolve().parents[1]
