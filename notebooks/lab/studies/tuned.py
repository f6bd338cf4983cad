"""What `kit.programs.tune` gains over XLA's default on some of the measured programs, on this machine. Prints a table.

    python notebooks/lab/studies/tuned.py --programs vgg_b1,alexnet_b2 [--budget 30]

JAX is needed. Nothing else should run meanwhile.
"""
import argparse
import sys
import time
from functools import partial
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")
from kit.programs import tune  # noqa: E402
from lab.measured import PROGRAMS, made  # noqa: E402


def row(name, budget, seed=0):
    """A line of the table: the program, its speed-up, and the layouts that matter most."""
    function, args = made(name)
    start = time.perf_counter()
    found = tune(function, *args, budget=budget, seed=seed)
    low, high = found.interval
    matters = "; ".join(f"{words} ({ratio:.2f})" for words, ratio in [*found.matters.items()][:2])
    return (f"| `{name}` | {len(found.trials)} | {found.speedup:.3f} ({low:.3f} to {high:.3f}) | "
            f"{'faster' if low > 1 else 'not surely faster'} | {matters} | {time.perf_counter() - start:.0f} |")


def main(argv=None):
    """Tune programs one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=partial(str.split, sep=","), required=True,
                        help="of measure_programs.py --list")
    parser.add_argument("--budget", type=int, default=30)
    args = parser.parse_args(argv)
    unknown = [name for name in args.programs if name not in PROGRAMS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    print("| program | measurements | speed-up over XLA's default, measured again | | layouts that matter "
          "(time without / with) | seconds |\n|---|---|---|---|---|---|", flush=True)
    for name in args.programs:
        print(row(name, args.budget), flush=True)


if __name__ == "__main__":
    main()
