"""Time one training step of every network and write the table of README.md beside this file.

    python tests/benchmarks/run.py [--only gnn,gst] [--rounds 3] [--steps 3] [--threads 2] [--device cpu]

Each bench_*.py beside this file has CASES, {name: function}. function(device) returns (step, configs): `step` does one
whole training step, `configs` is the number of configurations in that step. On a CPU every case runs in a fresh
process; on a GPU, where PyTorch counts the memory, all cases of a file run in one. All cases take turns, round by
round, so that other work on the machine slows all of them alike. A number in the table is the median over rounds and
steps. Peak memory is the growth of the process during the steps, or on a GPU the memory that PyTorch allocated.
"""
import argparse
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path[:0] = [str(PROJECT), str(HERE), str(HERE.parent), str(PROJECT / "notebooks")]
from kit.train_parts import processor_name  # noqa: E402

PAGE = HERE / "README.md"
MIB = 1 << 20


def bench_file(name):
    """The module bench_NAME.py."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"bench_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured_on(device):
    """The bench files for a device, joined by commas; a file without DEVICES is for all."""
    kind = torch.device(device).type
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    return ",".join(name for name in names if kind in getattr(bench_file(name), "DEVICES", [kind]))


def resident(kind):
    """Resident memory of this process in bytes: VmRSS now, VmHWM the peak."""
    return 1024 * int(re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))


def measure(name, case, steps, threads, device):
    """Run one case in this process -> seconds per step, configurations per step, peak bytes."""
    torch.set_num_threads(threads)
    step, configs = bench_file(name).CASES[case](device=device)
    return timed(step, steps, device) | {"configs": configs}


def timed(step, steps, device):
    """Call `step` once to warm up, then `steps` times -> seconds of each call, peak bytes above those held before."""
    cuda, seconds = torch.device(device).type == "cuda", []
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")       # VmHWM starts anew
        before = resident("VmRSS")
    for _ in range(steps + 1):                              # the first one warms up
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = (torch.cuda.max_memory_allocated() if cuda else resident("VmHWM")) - before
    return {"seconds": seconds[1:], "peak": peak}


def run_cases(name, cases, args):
    """What `measure` finds for cases of a bench file, one after the other in a process of their own."""
    command = [sys.executable, __file__, "--case", name, *cases, "--steps", str(args.steps),
               "--threads", str(args.threads), "--device", args.device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        done = 0
        for line in process.stdout:
            if line.startswith('{"seconds"'):
                yield json.loads(line)
                done += 1
    if process.returncode or done < len(cases):
        raise SystemExit(f"bench_{name}.py, {cases[min(done, len(cases) - 1)]}: exit status {process.returncode}")


def machine(threads, device):
    """Processor, threads and PyTorch version, for the line above a table."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    return (f"{processor_name()}, {threads} thread{'s' * (threads != 1)} of {os.cpu_count()} cores, "
            f"PyTorch {torch.__version__}")


def three_digits(value):
    """Three significant digits, never as a power of ten."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def table(found):
    """Markdown rows; speed is relative to the first case of the same bench file."""
    lines = ["| case | seconds per step | configurations per second | speed, first row = 1 | peak memory, MiB |",
             "|---|---|---|---|---|"]
    first = {}
    for (name, case), runs in found.items():
        step = statistics.median(second for run in runs for second in run["seconds"])
        rate, peak = runs[0]["configs"] / step, statistics.median(run["peak"] for run in runs) / MIB
        ratio = rate / first.setdefault(name, rate)
        lines.append(f"| {case} | {three_digits(step)} | {rate:,.0f} | {three_digits(ratio)} | {peak:,.0f} |")
    return lines


def write_page(name, lines):
    """Replace the table between the markers of its bench file in README.md; a stopped run never leaves half a page."""
    text, marks = PAGE.read_text(), (f"<!-- {name} -->", f"<!-- end {name} -->")
    before, _, rest = text.partition(marks[0])
    if marks[1] not in rest:
        raise SystemExit(f"{PAGE}: no lines {marks[0]} and {marks[1]} to write the table between")
    part = PAGE.with_name(f".{PAGE.name}.{os.getpid()}")
    part.write_text("\n".join([before + marks[0], *lines, marks[1]]) + rest.partition(marks[1])[2])
    os.replace(part, PAGE)


def mark(name, device):
    """The name of a table's markers: a bench file that is measured on CPUs and GPUs has a table for each."""
    kind = torch.device(device).type
    return name if kind in getattr(bench_file(name), "DEVICES", ["cpu"]) else f"{name} on {kind}"


def main():
    """Measure the chosen bench files, print and write their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="bench files, joined by commas; default: all that the device can run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", nargs="+", metavar=("FILE", "CASE"), help="cases of a file, in this process; "
                        "prints a line of JSON for each")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    args = parser.parse_args()
    if args.case:
        for case in args.case[1:]:
            print(json.dumps(measure(args.case[0], case, args.steps, args.threads, args.device)), flush=True)
        return None
    on_gpu = torch.device(args.device).type == "cuda"
    for name in (args.only or measured_on(args.device)).split(","):
        found = {}
        for turn in range(args.rounds):
            cases = list(bench_file(name).CASES)
            for together in [cases] if on_gpu else [[case] for case in cases]:
                for case, run in zip(together, run_cases(name, together, args)):
                    found.setdefault((name, case), []).append(run)
                    print(f"{name} {turn + 1}/{args.rounds} {case}: {three_digits(min(run['seconds']))} s", flush=True)
        steps = f"{args.rounds} round{'s' * (args.rounds != 1)} of {args.steps} step{'s' * (args.steps != 1)}"
        lines = [f"{machine(args.threads, args.device)}; {steps}.", "", *table(found)]
        print("\n".join(lines))
        if not args.print_only:
            write_page(mark(name, args.device), lines)
    return None


if __name__ == "__main__":
    main()
