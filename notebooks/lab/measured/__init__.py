"""Real programs: known networks in plain JAX, measured on the machine at hand into files of the data set's format."""
from pathlib import Path

from lab.measured.files import KINDS, CollectSettings, collect, write_catalogue
from lab.measured.programs import PROGRAMS, made

SEARCHES = Path(__file__).with_name("cpu") / "searches.csv"      # what lab/studies/true_searches.py found
SECOND = Path(__file__).with_name("cpu_second") / "npz"          # `random` files of the same programs on another CPU

__all__ = ["KINDS", "PROGRAMS", "SEARCHES", "SECOND", "CollectSettings", "collect", "made", "write_catalogue"]
