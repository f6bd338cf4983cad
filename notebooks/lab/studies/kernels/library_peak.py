"""What PyTorch calls for each layer of known networks, and what PyTorch and OpenBLAS reach of a core's fp32 peak.

    python notebooks/lab/studies/kernels/library_peak.py

It measures on one core of an x86-64 CPU in about 6 minutes, and writes the rows of this CPU to
notebooks/kernels_libraries.csv. Rows of other CPUs stay. The command needs gcc and Linux.

- The clock is measured with a chain of additions, one cycle each; "clock" is in GHz. A chain of multiplications of
  integers, three cycles each, must give the same clock within 10%.
- The peak is measured with twelve independent chains of fused multiply-adds in registers, of 256 bits, and of 512 bits
  if the CPU has them. The faster width counts; "peak" is in GFLOP/s.
- Loops and libraries run in turns, in a random order in each round, so a change of the clock reaches all of them. A
  turn is the shortest of several repeats of 1 ms, as in lab.kernels.measure. Seconds are the thread's CPU time, so time
  in which other programs have the core does not count. "ms" is the median over the rounds of all passes, "low" and
  "high" are the quartiles.
- "percent" is of the peak in the same rounds. Softmax and layer norm have none.
- "backend" is what the logs of MKL and oneDNN say during one call. A call that is in no log runs PyTorch's own loops.
"""
import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
import torch
from scipy.linalg.blas import sgemm
from threadpoolctl import ThreadpoolController

from kit.files import replace_file
from kit.training import cpu_fields
from lab.kernels import multiplications, read_races
from lab.kernels.definitions import kernel_inputs
from lab.kernels.measure import processor_name
from lab.kernels.networks import known_layers
from lab.kernels.pytorch import pytorch_calls

HERE = Path(__file__).resolve().parents[3]               # notebooks/

REPEAT, REPEATS = 1e-3, 8                # seconds of a repeat, at least one run; repeats of a turn, at most
FMAS = {"fma256": 8, "fma512": 16}       # numbers per instruction
STEPS = 20_000                           # of a loop below
APART = 0.1                              # share by which the clock of additions and of multiplications may differ
SOURCE = r"""
#define LOOP(name, setup, body, ...) void name(long n) { long x = 1, one = 1; asm volatile(setup "1:\n" body \
    "dec %1\njnz 1b\n" : "+r"(x), "+r"(n) : "r"(one) : "cc", __VA_ARGS__); }
#define EACH(text) ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" text "\n.endr\n"
#define ALL "xmm0","xmm1","xmm2","xmm3","xmm4","xmm5","xmm6","xmm7","xmm8","xmm9","xmm10","xmm11","xmm12"
#define ZERO EACH("vxorps %%xmm\\r,%%xmm\\r,%%xmm\\r") "vxorps %%xmm12,%%xmm12,%%xmm12\n"
LOOP(adds, "", ".rept 100\nadd %2,%0\n.endr\n", "memory")
LOOP(products, "", ".rept 100\nimul %2,%0\n.endr\n", "memory")
LOOP(fma256, ZERO, ".rept 10\n" EACH("vfmadd231ps %%ymm12,%%ymm12,%%ymm\\r") ".endr\n", ALL)
LOOP(fma512, ZERO, ".rept 10\n" EACH("vfmadd231ps %%zmm12,%%zmm12,%%zmm\\r") ".endr\n", ALL)
"""


def core_loops():
    """{name: a function that runs a loop, the units of its work}: cycles for the clock, floating-point operations."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loops.c"), Path(folder, "loops.so")
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        compiled = ctypes.CDLL(str(library))
    wide = {name: size for name, size in FMAS.items() if name == "fma256" or "avx512f" in cpu_fields().get("flags", "")}
    units = {"adds": 100, "products": 300, **{name: 120 * 2 * size for name, size in wide.items()}}
    return {name: (partial(getattr(compiled, name), ctypes.c_long(STEPS)), STEPS * unit)
            for name, unit in units.items()}


def library_of(call):
    """What a call of PyTorch runs, as the logs say: "MKL SGEMM", "oneDNN" and its kernel, or "PyTorch" itself."""
    libc, shown = ctypes.CDLL(None), os.dup(1)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)                             # both write to the C library's stdout
        try:
            with torch.backends.mkl.verbose(1), torch.backends.mkldnn.verbose(1):
                call()
        finally:
            libc.fflush(None)
            os.dup2(shown, 1)
            os.close(shown)
        log.seek(0)
        lines = log.read().decode().splitlines()
    found = [f"MKL {line.split()[1].partition('(')[0]}" for line in lines if line.startswith("MKL_VERBOSE") and "(" in
             line.split()[1]]
    parts = [line.split(",") for line in lines if line.startswith("onednn_verbose") and ",exec," in line]
    found += [f"oneDNN {part[6]}" for part in parts if part[5] != "reorder"]
    return " and ".join(dict.fromkeys(found)) or "PyTorch"


def layer_calls(kernel, blas):
    """[(library, backend, version, call)] of a layer; a library may have several forms, as of `pytorch_calls`."""
    x, *others = inputs = kernel_inputs(kernel, np.random.default_rng(0))
    calls = [("PyTorch", library_of(call), torch.__version__, call)
             for call, _ in pytorch_calls(kernel, [torch.from_numpy(array) for array in inputs])]
    if kernel.kind == "matmul":
        calls.append(("NumPy", blas["numpy"], np.__version__, lambda: x @ others[0]))
    if kernel.kind == "matmul" and x.ndim == 2:
        turned = np.ascontiguousarray(others[0].T)
        calls.append(("NumPy", blas["numpy"], np.__version__, lambda: x @ turned.T))
        if len(x) > 1:                                       # for one row, NumPy calls the faster sgemv
            calls.append(("SciPy", blas["scipy"], scipy.__version__, lambda: sgemm(1.0, others[0].T, x.T)))
    return calls


def layer_turns(calls, loops, rounds):
    """Seconds of a run (rounds, loops and calls), in turns, in a random order in each round."""
    works = [run for run, _ in loops.values()] + [call for *_, call in calls]
    seconds, rng = np.empty((rounds, len(works))), np.random.default_rng(0)
    with torch.inference_mode():
        once = [min(_took(work) for _ in range(3)) for work in works]
        for turn in seconds:
            for place in rng.permutation(len(works)):
                turn[place] = _turn(works[place], once[place])
    return seconds


def layer_rows(kernel, calls, loops, seconds):
    """The rows of a layer, one per library, with its fastest form; `seconds` as of `layer_turns`."""
    rates = {name: 1e-9 * unit / np.median(taken) for (name, (_, unit)), taken in zip(loops.items(), seconds.T)}
    clock, peak = rates["adds"], max(rates[name] for name in FMAS if name in rates)
    if abs(rates["products"] / clock - 1) > APART:
        raise RuntimeError(f"the clock is {clock:.2f} GHz by additions and {rates['products']:.2f} GHz by "
                           f"multiplications; expected at most {APART:.0%} between them: measure again on an idle core")
    rows = []
    for (library, backend, version), taken in zip(calls, 1e3 * seconds[:, len(loops):].T):
        low, ms, high = np.quantile(taken, (0.25, 0.5, 0.75))
        gflops = 2e-6 * multiplications(kernel) / ms if kernel.kind not in ("softmax", "layer norm") else np.nan
        rows.append({"kernel": kernel.name, "library": library, "backend": backend, "ms": ms, "low": low, "high": high,
                     "gflops": gflops, "percent": 100 * gflops / peak, "peak": peak, "clock": clock,
                     "rounds": len(seconds), "version": version})
    return pd.DataFrame(rows).sort_values("ms").drop_duplicates("library").sort_index()


def _turn(work, once):
    """Seconds of a run, the shortest of several repeats; one run takes about `once` seconds."""
    number = int(max(1, REPEAT / once))
    return min(_took(work, number) for _ in range(int(np.clip(REPEAT * REPEATS / (number * once), 1, REPEATS))))


def _took(work, number=1):
    """CPU seconds of one of `number` runs."""
    start = time.thread_time()
    for _ in range(number):
        work()
    return (time.thread_time() - start) / number


def measure(kernels, core, rounds, passes):
    """The rows of all kernels, measured on one core, with so many rounds in each pass over the kernels."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    libraries, turns, calls = ThreadpoolController(), {}, {}
    blas = {package: f"OpenBLAS {one['version']} {one['architecture']}" for one in libraries.info()
            for package in ("numpy", "scipy") if f"{package}.libs" in one["filepath"] and "architecture" in one}
    with libraries.limit(limits=1):
        loops = core_loops()
        for _ in range(passes):
            for kernel in kernels:
                made = layer_calls(kernel, blas)
                calls[kernel] = [about for *about, _ in made]          # without the arrays
                turns.setdefault(kernel, []).append(layer_turns(made, loops, rounds))
    return pd.concat([layer_rows(kernel, calls[kernel], loops, np.concatenate(turns[kernel])) for kernel in kernels])


def main(argv=None):
    """Measure what the command line asks for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="default: all layers in kernels_networks.csv")
    parser.add_argument("--rounds", type=int, default=11, help="in each pass over the layers")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="default: the last one")
    parser.add_argument("--table", type=Path, default=HERE / "kernels_libraries.csv")
    args = parser.parse_args(argv)
    known = known_layers()
    stored = set(read_races(HERE / "kernels_networks.csv")["kernel"])
    names = args.layers or [name for name in known if name in stored]
    if unknown := set(names) - set(known):
        parser.error(f"no layer {', '.join(sorted(unknown))}; notebooks/lab/kernels/networks.csv has all layers")
    found = measure([known[name] for name in names], args.core, args.rounds, args.passes)
    found = found.assign(cpu=processor_name(), date=date.today().isoformat())
    if args.table.is_file():
        table = pd.read_csv(args.table)
        found = pd.concat([table[table["cpu"] != processor_name()], found])
    replace_file(args.table, found.to_csv(index=False, float_format="%.5g"))
    median = found.groupby("cpu")[["clock", "peak"]].median()
    print(f"{args.table}: {len(found)} rows; medians: {median.to_dict('index')}")


if __name__ == "__main__":
    main()
