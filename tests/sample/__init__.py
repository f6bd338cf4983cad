"""Generated programs with simulated runtimes, for tests and benchmarks: a small data set in the official format."""
from sample.programs import Program
from sample.runtimes import LayoutSimulator
from sample.write import write_sample

__all__ = ["Program", "LayoutSimulator", "write_sample"]
