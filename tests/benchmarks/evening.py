"""Rehearse README's evening at the size of the whole data set, and write the table of README.md beside this file.

    python tests/benchmarks/evening.py --folder DIR [--share 1.0] [--kills 0] [--print-only]

The script generates all five collections with the official counts of files, and with about the numbers of nodes and
configurations of Table 1 of the paper (arXiv:2308.13490): 396 GiB of configurations, 21 GB of disk. Files in DIR from
an earlier call are kept. Then README's command trains, ranks the 894 test graphs, and writes and checks the submission;
the script notes its time, its memory and its disk. --share 0.25 keeps every fourth training and validation file.
--kills 2 does the same once more, kills all its processes twice on the way, and compares the two submissions. Runtimes
are random, so no score is given.
"""
import argparse
import hashlib
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent), str(HERE.parents[1] / "notebooks")]
from generated import write_program  # noqa: E402
from rehearsal import GIB, Size, plan  # noqa: E402
from run import machine, write_page  # noqa: E402
from sample.kernels import tile_kernel  # noqa: E402

from kit.data import SPLITS  # noqa: E402
from kit.files import whole_file  # noqa: E402
from kit.kaggle.downloads import FILES  # noqa: E402
from lab.data import locate_data  # noqa: E402

SIZES = {collection: Size(FILES[collection], *ranges, 1000) for collection, ranges in {
    "layout:xla:random": ((372, 43_615), (26, 3143), (20, 100_040)),
    "layout:xla:default": ((372, 43_615), (26, 3143), (60, 71_574)),
    "layout:nlp:random": ((876, 21_919), (50, 500), (40_000, 100_001)),
    "layout:nlp:default": ((876, 21_919), (50, 500), (32_000, 90_985))}.items()}
TILE_CONFIGS = 2, 3683                # of a kernel; 1,842 in the mean of the data set
COMMAND = "--only", "03,04,05,06", "-p", "models=token,additive,lightgbm"         # as in README
KILLS = 0.2, 0.6                      # shares of the time of the run that was not killed


def files_of(share):
    """[(path below the data root, seed, arguments)] of every generated file."""
    files = []
    for number, (collection, size) in enumerate(SIZES.items()):
        counts = dict.fromkeys(SPLITS, 0.0)
        for i, file in enumerate(plan(size)):
            counts[file["split"]] += 1 if file["split"] == "test" else share
            if counts[file["split"]] >= 1:
                counts[file["split"]] -= 1
                files.append((Path(*collection.split(":"), file["split"], f"drawn_{i:03}.npz"), [number, i], file))
    for split, count in zip(SPLITS, FILES["tile:xla"]):
        for i in range(count if split == "test" else round(share * count)):
            files.append((Path("tile", "xla", split, f"drawn_{i:04}.npz"), [4, SPLITS.index(split), i], split))
    return files


def write_one(root, path, seed, what):
    """Write one file if it is not there; returns its bytes on disk."""
    path, rng = root / path, np.random.default_rng(seed)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, dict):
            write_program(path, rng, **what)
        else:
            write_kernel(path, rng, what)
    return path.stat().st_size


def write_kernel(path, rng, split):
    count = int(rng.integers(*TILE_CONFIGS))
    arrays, config_feat = tile_kernel(rng, count)
    config_feat = config_feat[rng.integers(len(config_feat), size=count)]        # a small kernel has fewer tiles
    runtime = rng.integers(10_000, 99_999, len(config_feat))
    if split == "test":
        runtime = 0 * runtime
    with whole_file(path) as part, open(part, "wb") as file:
        np.savez_compressed(file, **arrays, config_feat=config_feat, config_runtime=runtime,
                            config_runtime_normalizers=np.full(len(runtime), 10_000))


def generate(root, share):
    """Write what is missing with all cores -> number of files, bytes on disk."""
    files, stored, start = files_of(share), 0, time.monotonic()
    with ProcessPoolExecutor() as pool:
        for number, size in enumerate(pool.map(write_one, [root] * len(files), *zip(*files)), 1):
            stored += size
            if number % 500 == 0 or number == len(files):
                print(f"generated {number} of {len(files)} files, {stored / 1e9:.1f} GB, "
                      f"{(time.monotonic() - start) / 60:.1f} min", flush=True)
    return len(files), stored


def memory(process):
    """Bytes of main memory of a process and its children; memory that several of them share counts once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def evening(root, folder, kills=()):
    """README's command in an empty folder; killed after each of `kills` seconds and started again.

    Returns the SHA-256 of the submission, seconds, and the peak of the memory of all processes together.
    """
    folder.mkdir(parents=True)
    shutil.rmtree(locate_data(root)[1], ignore_errors=True)          # what earlier runs prepared
    command = [sys.executable, str(HERE.parents[1] / "notebooks" / "run.py"), "--data-root", str(root), "--out",
               str(folder / "run"), *COMMAND]
    peak, start, kills = 0, time.monotonic(), [*kills]
    while True:
        begin = time.monotonic()
        child = subprocess.Popen(command, cwd=folder, start_new_session=True)
        while child.poll() is None and not (kills and time.monotonic() - begin > kills[0]):
            peak = max(peak, memory(psutil.Process(child.pid)))
            time.sleep(1)
        if child.poll() is not None:
            break
        for one in [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]:
            one.kill()
        child.wait()
        print(f"killed after {kills.pop(0):.0f} s", flush=True)
    if child.returncode:
        raise SystemExit(f"run.py: exit status {child.returncode}")
    found = (folder / "run" / "submission.csv").read_bytes()
    rows = found.count(b"\n") - 1
    if rows != sum(counts[2] for counts in FILES.values()):
        raise SystemExit(f"the submission has {rows} rows")
    return hashlib.sha256(found).hexdigest(), time.monotonic() - start, peak


def stored(folder):
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main():
    """Generate, run, kill; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the generated data and the runs")
    parser.add_argument("--share", type=float, default=1.0, help="of the training and validation files")
    parser.add_argument("--kills", type=int, choices=range(len(KILLS) + 1), default=0)
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    args = parser.parse_args()
    root = args.folder.resolve() / "data"
    count, size = generate(root, args.share)
    name = f"{time.time():.0f}"
    digest, seconds, peak = evening(root, args.folder.resolve() / name)
    kept = stored(args.folder / name) + stored(locate_data(root)[1])
    lines = [f"{machine(2, 'cpu')}; generated files, random runtimes.", "", "| what | measured |", "|---|---|",
             f"| files read | {count:,}, {size / 1e9:.1f} GB on disk |",
             f"| from the files to a checked submission of 894 rows | {seconds / 60:.0f} min |",
             f"| most memory, all processes together | {peak / GIB:.1f} GiB |",
             f"| disk for prepared files, models and predictions | {kept / 1e9:.1f} GB |"]
    print(*lines, sep="\n", flush=True)
    if args.kills:
        times = [share * seconds for share in KILLS[:args.kills]]
        again, longer, _ = evening(root, args.folder.resolve() / f"{name}-killed", times)
        if again != digest:
            raise SystemExit("the killed run wrote another submission")
        lines.append(f"| killed {args.kills} times on the way and started again: the same file, byte for byte, after "
                     f"| {longer / 60:.0f} min |")
        print(lines[-1])
    if not args.print_only:
        write_page("evening", lines)


if __name__ == "__main__":
    main()
