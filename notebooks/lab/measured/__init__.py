"""Real programs: known networks in plain JAX, measured on the machine at hand into files of the data set's format."""
from lab.measured.files import KINDS, CollectSettings, collect, write_catalogue
from lab.measured.programs import PROGRAMS, made

__all__ = ["KINDS", "PROGRAMS", "CollectSettings", "collect", "made", "write_catalogue"]
