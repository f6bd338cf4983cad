"""Publish the trained checkpoints of a run as a private Kaggle Dataset, for `bundle.py --weights`.

`python notebooks/weights.py submissions/my-run tpugraphs-weights --data-root path/to/npz_all` uploads the checkpoints,
their settings, and what they were made from; no token and no data. If the Dataset exists, it gets a new version; if it
has the same files already, nothing is uploaded. The command waits until notebooks on Kaggle can read the Dataset.
Checkpoints of notebooks that `run.py --on kaggle` has pushed are fetched first.
"""
import argparse
import sys
import tempfile
from pathlib import Path
from shlex import quote

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = str(PROJECT), str(PROJECT / "notebooks")         # a clone runs without installing
from kit.data import DataError  # noqa: E402
from kit.files import locked  # noqa: E402
from kit.kaggle import KaggleError, push_dataset  # noqa: E402
from lab.data import open_data  # noqa: E402
from lab.jobs import fetch_checkpoints, read_jobs  # noqa: E402
from lab.packed_weights import combined_by, models_of, pack_weights  # noqa: E402


def publish(out, dataset, data_root=None, timeout=7200.0, client=None):
    """Publish the weights of the run in `out` -> as from `push_dataset`."""
    if not Path(out, "steps").is_dir():
        raise DataError(f"{out}: is no folder of a run, or has no predictions; run.py makes it")
    root = open_data(data_root, folder=PROJECT / "data").resolve()
    with locked(Path(out, ".run", "lock")) as holder:
        if holder is not None:
            raise DataError(f"{out}: a run{holder} is writing here; wait for it")
        if jobs := read_jobs(Path(out, ".run", "kaggle.json")):
            fetched = fetch_checkpoints(jobs, out, models_of(out), client)
            print(f"{len(fetched)} checkpoints are fetched from Kaggle", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            weights = pack_weights(out, root, Path(folder, "weights"))
            count = sum(len(own["predictions"]) for own in weights.collections.values())
            print(f"{out}: {len(weights.checkpoints)} checkpoints, {count} predictions, digest {weights.digest[:12]}",
                  flush=True)
            return push_dataset(Path(folder, "weights"), dataset, timeout=timeout, client=client)


def main(argv=None):
    """Publish what the command line asks for."""
    from steps import show
    parser = argparse.ArgumentParser(prog="weights.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", metavar="RUN", help="the folder of the run, such as submissions/my-run")
    parser.add_argument("dataset", metavar="NAME", help="of the Kaggle Dataset, or OWNER/NAME")
    parser.add_argument("--data-root", metavar="DIR", help="the data of the run, as for run.py")
    parser.add_argument("--timeout", metavar="HOURS", type=float, default=2.0, help="for the upload, and for Kaggle to "
                        "process it; default: 2")
    args = parser.parse_args(argv)
    try:
        done = publish(Path(args.out).expanduser(), args.dataset, args.data_root, 3600 * args.timeout)
    except (DataError, KaggleError, OSError, RuntimeError) as error:
        print(f"weights.py: {error}", file=sys.stderr)
        return 2 if isinstance(error, DataError) else 1
    more = "".join(f" -p {name}={value}" for name, value in combined_by(Path(args.out).expanduser()).items())
    print(f"next: {quote(show(sys.executable))} notebooks/bundle.py --only 05,06 --weights {done['ref']} "
          f"--owner {done['ref'].partition('/')[0]}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
