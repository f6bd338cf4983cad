"""The process that compiles and runs programs for kit/programs/timing.py; JSON lines in, JSON lines out.

    python -m kit.programs.timing_child FOLDER

It runs on its own, so that a crash, a hang or too much memory ends nothing else. FOLDER holds `inputs.json` and one
file of `jax.export` per program. Requests: {"do": "compile", "name": NAME}, {"do": "time", "name": NAME, "seconds": S},
{"do": "forget"}. The program named "default" comes first: its results are the ones that all others must have.
"""
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

LEAST_SECONDS = 3e-3             # of a sample; a shorter program runs several times in each
LEAST, MOST = 5, 100             # samples of a measurement
SPREAD = 5e-3                    # by how much the fifth fastest sample may be slower than the fastest
CLOSE_ENOUGH = {"float64": 1e-6, "float32": 1e-3, "complex64": 1e-3, "complex128": 1e-6}       # of the largest value
CLOSE_16_BITS = 3e-2             # bfloat16 and smaller


def main():
    """Answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)                                          # what libraries print must not be taken for an answer
    end_with_parent()
    folder = Path(sys.argv[1])
    inputs, programs, known = None, {}, None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "compile":
                inputs = read_inputs(folder) if inputs is None else inputs
                start = time.perf_counter()
                programs[request["name"]] = compiled(folder / f"{request['name']}.export", inputs)
                answer = {"seconds": time.perf_counter() - start}
            elif request["do"] == "time":
                run = programs[request["name"]]
                results = [np.asarray(one) for one in run(*inputs)]          # the first run warms the caches up, too
                known = results if request["name"] == "default" and known is None else known
                answer = {"fault": fault} if (fault := difference(results, known)) else timed(
                    partial(run, *inputs), request["seconds"])
            else:
                programs = {"default": programs["default"]}
                answer = {}
        except Exception as fault:                                           # one program's failure
            answer = {"fault": f"{type(fault).__name__}: {str(fault).strip() or 'without a word'}"[:300]}
        replies.write(json.dumps(answer) + "\n")


def end_with_parent():
    """Let the system kill this process when its parent has ended, for whatever reason."""
    if sys.platform == "linux":
        import ctypes
        import signal
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)         # 1 is PR_SET_PDEATHSIG
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))   # a crash writes no core dump


def read_inputs(folder):
    """The arguments of the program, on the device."""
    import jax
    jax.config.update("jax_cpu_enable_async_dispatch", False)      # no second thread, which would want the same core
    listed = json.loads((folder / "inputs.json").read_text())
    data = (folder / "inputs.bin").read_bytes()
    found = []
    for one in listed:
        part = data[one["start"]:one["end"]]
        found.append(jax.device_put(np.frombuffer(part, jax.numpy.dtype(one["dtype"])).reshape(one["shape"])))
    return found


def compiled(path, inputs):
    """Compile a program that `jax.export` has written."""
    import jax
    from jax import export
    return jax.jit(export.deserialize(bytearray(path.read_bytes())).call).lower(*inputs).compile()


def difference(results, known):
    """In words how results differ from the default's; "" if they are close enough."""
    for place, (own, theirs) in enumerate(zip(results, known)):
        if own.dtype.kind in "iub":
            if not np.array_equal(own, theirs):
                return f"result {place} is not the default's"
            continue
        wide = np.complex128 if own.dtype.kind == "c" else np.float64
        limit, own, theirs = CLOSE_ENOUGH.get(own.dtype.name, CLOSE_16_BITS), own.astype(wide), theirs.astype(wide)
        finite = np.isfinite(theirs)
        if not np.array_equal(finite, np.isfinite(own)):
            return f"result {place} is not finite where the default's is, or the other way around"
        apart = np.abs(own[finite] - theirs[finite]).max(initial=0.0)
        if apart > limit * max(np.abs(theirs[finite]).max(initial=0.0), 1e-30):
            return f"result {place} differs from the default's by {apart:.1e}"
    return ""


def timed(run, seconds):
    """Measure until five samples agree or `seconds` are over -> {"ns", "median", "spread", "samples"}.

    Whatever else runs on the machine only adds time, so "ns" is the median of the five fastest samples. "spread" is by
    how much the fifth is slower than the first, "median" is that of all samples.
    """
    import jax
    start = time.perf_counter()
    jax.block_until_ready(run())
    once = time.perf_counter() - start
    number, samples = int(np.clip(np.ceil(LEAST_SECONDS / once), 1, 1000)), []
    while len(samples) < MOST:
        begin = time.perf_counter_ns()
        for _ in range(number):
            result = run()
        jax.block_until_ready(result)
        samples.append((time.perf_counter_ns() - begin) / number)
        fastest = sorted(samples)[:LEAST]
        spread = fastest[-1] / fastest[0] - 1
        if len(samples) >= LEAST and (spread <= SPREAD or time.perf_counter() - start > seconds):
            break
    return {"ns": float(np.median(fastest)), "median": float(np.median(samples)), "spread": spread,
            "samples": len(samples)}


if __name__ == "__main__":
    main()
