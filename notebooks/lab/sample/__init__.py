"""Sample data: a small data set in the official format, for which every true runtime is known."""
from lab.sample.programs import Program
from lab.sample.runtimes import LayoutSimulator
from lab.sample.write import write_sample

__all__ = ["Program", "LayoutSimulator", "write_sample"]
