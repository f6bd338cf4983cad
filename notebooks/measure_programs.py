"""Measure layouts of real programs on this machine, into files that the kit reads as the competition's.

`python notebooks/measure_programs.py --programs mlp_b128,vgg_b1 --out my-machine` measures two programs; without
`--programs`, all. It can be killed: the same command goes on. Nothing else should run meanwhile. Then
`run.py --data-root my-machine` trains on the files. JAX is needed: pip install ".[own]".
"""
import argparse
import sys
from itertools import product
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")         # a clone runs without installing
from kit.data import DataError  # noqa: E402
from kit.programs import BenchError, BenchSettings, MeasureSettings  # noqa: E402
from lab.measured import KINDS, PROGRAMS, CollectSettings, collect, write_catalogue  # noqa: E402
from lab.measured.tiles import write_tiles  # noqa: E402

TILES = "tiles"


def listed():
    """The programs as lines of text."""
    return [f"{name:18} {one.source} {one.split:5} {one.family}" for name, one in PROGRAMS.items()]


def main(argv=None):
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="measure_programs.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", metavar="DIR", help="where the files are written; the same folder goes on")
    parser.add_argument("--programs", metavar="A,B", help="default: all; --list names them")
    parser.add_argument("--list", action="store_true", help="name the programs, and measure nothing")
    parser.add_argument("--kinds", metavar="A,B", default=",".join(KINDS), help="of files; all programs have the first "
                        f"kind before one has the second; default: %(default)s. {TILES}: the stored kernels")
    parser.add_argument("--device", choices=("cpu", "gpu", "tpu"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU; each has a core; default: 1")
    parser.add_argument("--configs", type=int, default=CollectSettings.configs, help="per file; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=BenchSettings.seconds, help="of a measurement, at most; "
                        "default: %(default)s")
    parser.add_argument("--passes", type=int, default=MeasureSettings.passes, help="over all; default: %(default)s")
    args = parser.parse_args(argv)
    names = list(PROGRAMS) if args.programs is None else args.programs.split(",")
    kinds = args.kinds.split(",")
    unknown = [name for name in names if name not in PROGRAMS] + [kind for kind in kinds if kind not in (*KINDS, TILES)]
    if args.list:
        print("\n".join(listed()))
        return 0
    if unknown or args.out is None:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join([*PROGRAMS, *KINDS, TILES])}" if unknown else
                     "--out DIR is needed")
    failed = 0
    try:
        settings = CollectSettings(args.configs, max(args.configs // 10, 1), max(args.configs // 4, 1))
        measuring, bench = MeasureSettings(args.passes), BenchSettings(args.device, args.threads, args.seconds)
        if TILES in kinds:
            print(len(write_tiles(Path(args.out).expanduser())), "files of tile:xla", flush=True)
            write_catalogue(Path(args.out).expanduser())
        for kind, name in product([kind for kind in kinds if kind != TILES], names):
            try:
                print(*collect(name, Path(args.out).expanduser(), settings, measuring, bench, [kind]), flush=True)
            except BenchError as error:                             # of this program; the others go on
                failed += 1
                print(f"measure_programs.py: {error}", file=sys.stderr)
    except (DataError, ImportError, OSError, ValueError) as error:
        print(f"measure_programs.py: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
