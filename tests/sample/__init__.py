"""Generated programs with simulated runtimes, for tests and benchmarks: a small data set in the official format."""
from sample.runtimes import LayoutSimulator
from sample.write import write_sample

__all__ = ["LayoutSimulator", "write_sample"]
