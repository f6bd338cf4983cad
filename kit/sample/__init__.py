"""Sample data: a small data set in the official format, for which every true runtime is known."""
from kit.sample.programs import Program
from kit.sample.runtimes import LayoutSimulator
from kit.sample.write import write_sample

__all__ = ["Program", "LayoutSimulator", "write_sample"]
