#!/usr/bin/env python3
"""What target emu promises besides the step time.

  check.py --moec MOEC --work DIR CASE [--build OPTION ...]

  overlay   every op of every rank is in the trace, and starts and ends where the schedule says, within 2 % of the step
  variants  relays, replicas, slow or few NICs, mixed placement (pairs of groups on a node, one pair
            on all, not the same on each), a short last micro-batch, full recomputation: executed within 5 % of
            simulated
  scale     another time scale, the same executed step; a scale far too small for the machine is still counted rightly
  flags     options that have no meaning are refused, by one line and exit code 2
  repeat    same input, same bytes
  few       a step of three systems runs and its standard error is clean; with --build, under a sanitizer
"""

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rehearse  # noqa: E402

LIMIT = 5.0


def check(ok, text):
    if not ok:
        print("FAIL:", text)
        sys.exit(1)


class Bench:
    def __init__(self, args):
        self.args = args
        self.work = os.path.join(args.work, args.case)
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)
        self.env = dict(os.environ, MOEC_CACHE=os.path.join(args.work, "objects"))

    def make(self, name, text):
        """Builds a spec; returns its path and the bundle's folder."""
        spec, folder = os.path.join(self.work, f"{name}.moespec"), os.path.join(self.work, name)
        with open(spec, "w") as f:
            f.write(text)
        done = subprocess.run([self.args.moec, "build", spec, "--target", "emu", "-o", folder, "-q", *self.args.build],
                              env=self.env, capture_output=True, text=True)
        check(done.returncode == 0, f"{name}: {done.stderr}")
        return spec, folder

    def off(self, name, text, steps=2, scale=None):
        """Worst deviation of the executed step in percent."""
        _, folder = self.make(name, text)
        rows = rehearse.rehearse(folder, steps, scale)
        off = max((100 * (r["executed_ms"] / r["modelled_ms"] - 1) for r in rows), key=abs)
        print(f"{name}: {rows[0]['modelled_ms']:.3f} ms simulated, {off:+.2f} % executed at scale {rows[0]['scale']:g}, ops late "
              f"by up to {max(r['late_ms'] * r['scale'] for r in rows):.1f} ms", flush=True)
        return off


def spans(path, of_rank):
    """(group, op) -> [start, end, name] in us, over all ranks of a group."""
    events = json.load(open(path))["traceEvents"]
    names = {e["pid"]: e["args"]["name"].split()[-1] for e in events if e["name"] == "process_name"}
    found = {}
    for e in events:
        if e["ph"] != "X":
            continue
        key = (names[e["pid"]], e["args"]["op"])
        found.setdefault(key, []).append((e["ts"], e["ts"] + e["dur"], e["name"]))
    check(bool(found), f"no ops in {path}")
    return found if of_rank else {k: v[0] for k, v in found.items()}


def case_overlay(bench):
    spec, folder = bench.make("overlay", rehearse.spec_of("af_pipe", 8))
    planned, measured = os.path.join(bench.work, "planned.json"), os.path.join(bench.work, "measured.json")
    subprocess.run([bench.args.moec, "schedule", spec, "--trace", planned], check=True, stdout=subprocess.DEVNULL)
    rehearse.rehearse(folder, 1, None, measured)
    want, got = spans(planned, False), spans(measured, True)
    step = max(end for _, end, _ in want.values())
    worst = 0
    for key, (start, end, name) in want.items():
        if "SCALARS" in name or "REDUCE" in name or "SHARE" in name:
            continue  # not of every rank
        check(key in got and len(got[key]) == 2, f"{key} {name} is not in the trace of both ranks of its group")
        for s, e, n in got[key]:
            check(n == name, f"{key}: {n}, not {name}")
            if not name.startswith(("SEND", "RECV")):
                check(abs((e - s) - (end - start)) < 0.01, f"{name} takes {e - s} us, modelled {end - start}")
            worst = max(worst, abs(e - end))
    print(f"{len(want)} ops, step {step / 1e3:.1f} ms, ends off by up to {worst / 1e3:.2f} ms")
    check(worst < 0.02 * step, "the executed timeline is not the schedule's")


def case_variants(bench):
    variants = {
        "relays": dict(dedup="node"),
        "ranks": dict(dedup="rank"),
        "replicas": dict(replicas=2),
        "slow": dict(nic=8),
        "few": dict(nics=2),
        "mixed": dict(placement="mixed"),
        "mixed_sides": dict(placement="mixed", sizes=(2, 6)),
        "mixed_uneven": dict(placement="mixed", sizes=(3, 5)),
        "short": dict(sizes=(4, 4), seqs=4, batch=36, nic=8),  # the last micro-batch is 4 of 16 sequences
        "short_relays": dict(sizes=(2, 6), seqs=4, batch=19, dedup="node"),
        "again": dict(recompute="full", dense=1),
        "again_stages": dict(system="megatron_overlap", recompute="full"),
        "again_chunks": dict(system="tutel", recompute="full"),
    }
    for name, options in variants.items():
        options = {"system": "af_pipe", **options}
        off = bench.off(name, rehearse.spec_of(ranks=8, **options))
        check(abs(off) < LIMIT, f"{name} is off by {off:.2f} %")


def case_scale(bench):
    text = rehearse.spec_of("af_pipe", 8)
    for scale in (4, 0.05):
        off = bench.off(f"scale{scale}", text, 1, scale)
        check(abs(off) < (LIMIT if scale > 1 else 25), f"scale {scale}: off by {off:.2f} %")


def case_flags(bench):
    _, folder = bench.make("flags", rehearse.spec_of("af_pipe", 8))
    for words in (["--data", "x"], ["--seed", "1"], ["--holdout", "0"], ["--format", "bytes"], ["--eval-every", "1"], ["--link", "1GB/s"], ["--compute-scale", "2"], ["--dump-grads", "x"], ["--scale", "0"],
                  ["--scale", "x"], ["--steps", "2", "--trace-step", "3", "--trace", "x"]):
        done = subprocess.run([f"{folder}/train", *words], capture_output=True, text=True)
        check(done.returncode == 2 and len(done.stderr.splitlines()) == 1, f"{words}: {done.returncode}\n{done.stderr}")
    for words in (["--plan"], ["--memory"], ["--help"]):
        done = subprocess.run([f"{folder}/train", *words], capture_output=True, text=True)
        check(done.returncode == 0 and not done.stderr, f"{words}: {done.returncode}\n{done.stderr}")
    done = subprocess.run([bench.args.moec, "build", f"{bench.work}/flags.moespec", "--target", "gpu"], capture_output=True,
                          text=True, cwd=bench.work)
    check(done.returncode == 2 and "cpu, emu and cuda" in done.stderr, done.stderr)


def case_repeat(bench):
    text = rehearse.spec_of("af_pipe", 8)
    with open(os.path.join(bench.work, "same.moespec"), "w") as f:
        f.write(text)
    for folder in ("a", "b"):
        subprocess.run([bench.args.moec, "build", "same.moespec", "--target", "emu", "-o", folder, "-q", "--sources-only"],
                       check=True, cwd=bench.work, stdout=subprocess.DEVNULL)
    names = sorted(os.listdir(os.path.join(bench.work, "a")))
    same, different, missing = filecmp.cmpfiles(os.path.join(bench.work, "a"), os.path.join(bench.work, "b"), names, False)
    check(not different and not missing and "emu_kernels.c" in same, f"{different} {missing}")


def case_few(bench):
    for system in ("af_pipe", "tutel", "dualpipe"):
        _, folder = bench.make(system, rehearse.spec_of(system, 8))
        done = subprocess.run([f"{folder}/train", "--steps", "1", "--scale", "3"], capture_output=True, text=True, timeout=200)
        check(done.returncode == 0 and len(done.stderr.splitlines()) == 1, f"{system}: {done.returncode}\n{done.stderr[:4000]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("case")
    parser.add_argument("--build", action="append", default=[], help="one more word for moec build")
    args = parser.parse_args()
    globals()["case_" + args.case](Bench(args))


if __name__ == "__main__":
    main()
