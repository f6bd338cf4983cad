"""Time the two commands of README.md in a fresh clone and a fresh virtual environment, and write the table of README.md
beside this file. The machine should do nothing else meanwhile.

    python tests/benchmarks/commands.py [--runs 3] [--print-only]
"""
import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from run import PROJECT, machine, write_page  # noqa: E402

SUBMISSION = Path("submissions", "measured", "submission.csv")


def commands(readme):
    """The two commands of README.md -> (how to install, [the command that runs, the command that tests])."""
    lines = re.findall(r"^(python3 -m venv .*) && (\S+python .*)$", readme, flags=re.M)
    if len(lines) != 2 or lines[0][0] != lines[1][0]:
        raise SystemExit(f"README.md: expected two commands that install and then run Python, found {len(lines)}")
    return lines[0][0], [line[1] for line in lines]


def timed(command, folder):
    """Run a command in a shell -> seconds, and seconds until the submission was written (None: not written)."""
    start = time.time()
    done = subprocess.run(command, shell=True, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = time.time() - start
    if done.returncode:
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    print(f"{seconds:.0f} s  {done.stdout.splitlines()[-1]}", flush=True)
    written = folder / SUBMISSION
    return seconds, written.stat().st_mtime - start if written.is_file() else None


def measure(folder, runs):
    """Clone the project, install it, and run each command `runs` times -> rows of the table."""
    subprocess.run(["git", "clone", "-q", str(PROJECT), str(folder)], check=True)
    install, (run, test) = commands((folder / "README.md").read_text())
    timed(install, folder)
    found = {"the first command": [], "its first submission": [], "the second command": []}
    for _ in range(runs):
        for made in ("data", "submissions"):                 # as in a clone that was never used
            shutil.rmtree(folder / made, ignore_errors=True)
        subprocess.run(["git", "checkout", "-q", "."], cwd=folder, check=True)
        whole, first = timed(run, folder)
        found["the first command"].append(whole)
        found["its first submission"].append(first)
        found["the second command"].append(timed(test, folder)[0])
    return found


def table(found):
    """The measured seconds as a Markdown table."""
    lines = ["| what | median | each run |", "|---|---|---|"]
    return lines + [f"| {name} | {statistics.median(some):.0f} s | {', '.join(f'{s:.0f}' for s in some)} s |"
                    for name, some in found.items()]


def main():
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--print-only", action="store_true", help="leave the page as it is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"{machine(2, 'cpu')}.", "", *table(measure(Path(folder, "clone"), args.runs))]
    print(*lines, sep="\n")
    if not args.print_only:
        write_page("commands", lines)


if __name__ == "__main__":
    main()
