#!/usr/bin/env python3
"""Programs with several shapes: what they compute when they switch between steps, and that nothing needless is compiled.

  shapes.py parity   weights and the last gradients after steps in turn = the fp64 reference, taken over the same batches
                     one after the other; the same bits again, with poisoned memory and delays; each shape alone = the
                     program that has only it, bit for bit
  shapes.py emu      a rehearsal that switches takes the modelled time of each shape, at a scale that suits those in use
  shapes.py plan     what the planner says of a placement that shapes share
  shapes.py rebuild  a changed, added or removed shape compiles tables alone (--seconds: and is ready within that time)

Tolerance as in layouts.py; of weights it is measured against the weights, of which a step moves about 0.3 %.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import time

from layouts import LAYOUT, MIN_MARGIN, MODEL, RTOL, Runner, plan_of, read, spec_text

# The shapes of a program: seq, micro_batch, steps in a row, and how many sequences a step has more or fewer than the
# layout's own number.
THREE = [(16, 1, 2, 0), (33, 2, 1, 0), (5, 1, 1, -1)]
TWO = [(16, 1, 1, 0), (9, 1, 2, 0)]

CASES = [
    (dict(ratio=(2, 3), p_att=2, p_ffn=3, mbs=3, uneven=True), THREE),
    (dict(ratio=(2, 4), node=2, replicas=2, mbs=2), THREE),
    (dict(ratio=(2, 2), place="colocated", p_att=2, mbs=2, tied="true"), TWO),
    (dict(system="dualpipe", p=2, ep=2, mbs=4, layers=6), TWO),
    (dict(system="tutel", chunks=3, p=2, ep=2, mbs=3, layers=6), THREE),
    (dict(system="megatron", p=2, v=2, ep=2, mbs=4, layers=6, capacity=0.5), THREE),
    (dict(system="afd", ratio=(1, 2), mbs=3, route_only="0, 1, 4"), TWO),
]
STEPS = 6


def turns_of(shapes):
    return ",".join(f"s{i}:{shape[2]}" for i, shape in enumerate(shapes))


def order_of(shapes, steps):
    """(shape, how many steps of it came before) of every step."""
    cycle = [i for i, shape in enumerate(shapes) for _ in range(shape[2])]
    order = [cycle[t % len(cycle)] for t in range(steps)]
    return [(k, order[:t].count(k)) for t, k in enumerate(order)]


def text_of(c, shapes):
    """The layout's spec with these shapes. A step of a shape has as many micro-batches as the layout says."""
    c = {**MODEL, **LAYOUT, **c}
    batch = plan_of(c)[1]
    lines = "\n".join(f"shape s{i} {{ seq = {seq}; micro_batch = {mb}; global_batch = {batch * mb + more} }}"
                      for i, (seq, mb, _, more) in enumerate(shapes))
    return spec_text(c, lines)


class Shapes(Runner):
    def make(self, c, shapes, *options):
        return self.compile(text_of(c, shapes), *options)


def parity_of(r, c, shapes):
    c = {**MODEL, **LAYOUT, **c}
    label = f"{c['system']} {c['ratio']} p={c['p']} {shapes}"
    spec, bundle, _ = r.make(c, shapes)
    weights, state = bundle + ".w0", bundle + ".state"
    r.train(bundle, c, "--steps", "0", "--dump-weights", weights)
    # each step's batch is that of its shape's own run
    for t, (k, earlier) in enumerate(order_of(shapes, STEPS)):
        batch = f"{bundle}.batch{t}"
        r.train(bundle, c, "--shape", f"s{k}", "--steps", str(earlier + 1), "--dump-batch", batch)
        out = r.run(r.args.ref, "--config", spec, "--shape", f"s{k}", "--weights", weights, "--state", state, "--tokens",
                    batch, "--steps", "1", "--out-weights", f"{bundle}.w{t + 1}", "--grads", bundle + ".ref", "--min-margin")
        weights = f"{bundle}.w{t + 1}"
        row = json.loads(out.splitlines()[0])
        margin = row["min_margin"]
        if not r.expect(margin is None or margin >= MIN_MARGIN, label, f"router margin {margin}"):
            return
    seen = set()
    for extra in ({}, {"MOE_POISON": "1"}, {"MOE_TEST_DELAY": "500,3"}, {"MOE_TEST_SYNC_SEND": "1"}, {"MOE_TEST_SERIAL": "1"}):
        r.train(bundle, c, "--shapes", turns_of(shapes), "--steps", str(STEPS), "--dump-weights", bundle + ".w",
                "--dump-grads", bundle + ".g", "--log", bundle + ".log", env={**r.env, **extra})
        rows = [json.loads(line) for line in open(bundle + ".log")]
        r.expect([x["shape"] for x in rows] == [f"s{k}" for k, _ in order_of(shapes, STEPS)], label, rows)
        seen.add((read(bundle + ".w"), read(bundle + ".g")))
    r.expect(len(seen) == 1, label, "a test switch changed the bits")
    r.expect(abs(rows[-1]["loss"] - row["loss"]) <= 1e-5 * abs(row["loss"]), label, (rows[-1], row))
    r.run(r.args.compare, bundle + ".w", weights, "--rtol", RTOL)
    r.run(r.args.compare, bundle + ".g", bundle + ".ref", "--rtol", RTOL)
    for k in range(len(shapes)):
        _, alone, _ = r.make(c, shapes, "--shape", f"s{k}")
        for program, more in ((bundle, ("--shape", f"s{k}")), (alone, ())):
            r.train(program, c, "--steps", "2", "--dump-weights", program + ".w", "--dump-grads", program + ".g", *more)
        same = read(bundle + ".w") == read(alone + ".w") and read(bundle + ".g") == read(alone + ".g")
        r.expect(same, label, f"s{k} in the program of all differs from the program of s{k}")
        shutil.rmtree(alone)
    shutil.rmtree(bundle)


def parity(r):
    for c, shapes in CASES:
        try:
            parity_of(r, c, shapes)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            r.expect(False, str(c), error)
        r.done += 1


def emu(r):
    """Executed on the modelled timeline; the machine's lateness is not in it, only how well ports were shared."""
    for c in (dict(ratio=(2, 2), p_att=2, p_ffn=2, mbs=3), dict(system="dualpipe", p=2, ep=2, mbs=4, layers=6)):
        _, bundle, _ = r.make(c, TWO, "--target", "emu")
        r.run(f"{bundle}/train", "--steps", "4", "--shapes", turns_of(TWO), "--log", bundle + ".log")
        rows = [json.loads(line) for line in open(bundle + ".log")]
        r.expect([x["shape"] for x in rows] == [f"s{k}" for k, _ in order_of(TWO, 4)], str(c), rows)
        r.expect(len({x["modelled_ms"] for x in rows}) == 2, str(c), rows)
        for x in rows:
            r.expect(abs(x["executed_ms"] / x["modelled_ms"] - 1) < 0.05, str(c), x)
        r.done += 1
    scale_of_shapes_in_use(r)


def scale_of_shapes_in_use(r):
    """The time scale suits the shapes that run, not a small one that does not. It only ever doubles from where it starts."""
    c = dict(ratio=(1, 1), mbs=2)
    shapes = [(256, 1, 1, 0), (1, 1, 1, 0)]
    programs = [(r.make(c, shapes, "--target", "emu")[1], ("--shape", "s0")),
                (r.make(c, shapes, "--target", "emu", "--shape", "s0")[1], ())]
    scales = []
    for bundle, more in programs:
        r.run(f"{bundle}/train", "--steps", "1", "--log", bundle + ".log", *more)
        scales.append(json.loads(open(bundle + ".log").readline())["scale"])
    doublings = math.log2(scales[0] / scales[1])
    r.expect(abs(doublings - round(doublings)) < 1e-6, str(shapes), f"scales {scales}: in a program of both, and alone")
    r.done += 1


def joint_rows(said):
    found = re.findall(r"shape (\w+) +weight (\S+) +step ([\d.]+) ms, alone ([\d.]+) ms: (loses|gains) ([\d.]+) %", said)
    return {name: (float(w), float(step), float(own), float(p) if how == "loses" else -float(p))
            for name, w, step, own, how, p in found}


FREE = """
gpu g {{ flops = 50 GFLOPS; memory = 4 GiB; hbm = 10 GB/s; launch = 2 us }}
node n {{ gpu = g; gpus = 4; nics = 4; nvlink = 400 MB/s; nic = 200 MB/s; nvlink_latency = 5 us; nic_latency = 5 us }}
model m {{ layers = 4; hidden = 64; vocab = 256; norm_eps = 1e-6
  attention {{ heads = 4; kv_heads = 2; head_dim = 16; qk_norm = head; rope {{ theta = 1e4 }} }}
  moe {{ experts = 8; top_k = 2; hidden = 128; router = softmax_renorm }} }}
cluster c {{ nodes = 3; node = n }}
shape short {{ seq = 64; micro_batch = 1; global_batch = 192; weight = {} }}
shape long {{ seq = 4096; micro_batch = 1; global_batch = 24; weight = {} }}
train {{ dtype = fp32; optimizer adamw {{ lr = 1e-3 }} seed = 1 }}
plan {{ schedule = {} }}
"""


def plan(r):
    """Free placements: what a shape loses follows its weight, and the program of each is no slower than the other's."""
    for schedule in ("af_pipe", "megatron", "auto"):
        losses = {}
        for weights in ((1, 1), (1e4, 1), (1, 1e4)):
            spec = os.path.join(r.work, "free.moespec")
            with open(spec, "w") as f:
                f.write(FREE.format(*weights, schedule))
            said = r.run(r.args.moec, "plan", spec)
            r.expect(said == r.run(r.args.moec, "plan", spec), schedule, "planning twice gives two answers")
            rows = joint_rows(said)
            r.expect(set(rows) == {"short", "long"}, schedule, said)
            for w, step, own, loss in rows.values():
                r.expect(abs((step / own - 1) * 100 - loss) < 0.1, schedule, said)
            losses[weights] = rows
        r.expect(abs(losses[(1e4, 1)]["short"][3]) < 0.2, schedule, "the shape that counts loses")
        r.expect(abs(losses[(1, 1e4)]["long"][3]) < 0.2, schedule, "the shape that counts loses")
        total = lambda rows: sum(x[1] / x[2] for x in rows.values())
        for other in ((1e4, 1), (1, 1e4)):
            r.expect(total(losses[(1, 1)]) <= total(losses[other]) + 1e-3, schedule, losses)
        print(schedule, {k: {n: v[3] for n, v in rows.items()} for k, rows in losses.items()})
        r.done += 1


def compiled(said):
    found = re.search(r"(\d+) sources compiled, (\d+) reused", said)
    return int(found.group(1)), int(found.group(2))


def rebuild(r):
    r.env["MOEC_CACHE"] = os.path.join(r.work, "cache")
    shutil.rmtree(r.env["MOEC_CACHE"], ignore_errors=True)
    layout = dict(ratio=(2, 3), p_att=2, p_ffn=2, mbs=3)
    groups = 4

    def build(shapes, most, what):
        begin = time.monotonic()
        said = r.make(layout, shapes)[2]
        took = time.monotonic() - begin
        new, old = compiled(said)
        r.expect(new <= most and new + old > groups, what, f"{new} sources compiled, at most {most} expected")
        print(f"{what}: {new} compiled, {old} reused, {took:.3f} s")
        r.done += 1
        return took

    tables = groups + 1  # of one shape
    build([(16, 1, 1, 0)], 100, "the first build")
    for what, shapes, most in (("another seq", [(24, 1, 1, 0)], tables),
                               ("another global_batch", [(24, 1, 1, 10)], tables),
                               ("another micro_batch", [(24, 2, 1, 0)], tables),
                               ("a shape more", [(24, 2, 1, 0), (48, 1, 1, 0)], tables + 1),
                               ("a third shape", [(24, 2, 1, 0), (48, 1, 1, 0), (96, 1, 1, 0)], tables + 2),
                               ("the second shape's seq", [(24, 2, 1, 0), (40, 1, 1, 0), (96, 1, 1, 0)], tables + 2),
                               ("the same again", [(24, 2, 1, 0), (40, 1, 1, 0), (96, 1, 1, 0)], 0),
                               ("a shape fewer", [(24, 2, 1, 0), (40, 1, 1, 0)], 2)):
        took = build(shapes, most, what)
        if r.args.seconds:
            r.expect(took < r.args.seconds, what, f"took {took:.2f} s, at most {r.args.seconds} s expected")


def main():
    parser = argparse.ArgumentParser()
    cases = dict(parity=parity, emu=emu, plan=plan, rebuild=rebuild)
    parser.add_argument("what", choices=cases)
    for flag in ("--moec", "--work"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--ref")
    parser.add_argument("--compare")
    parser.add_argument("--seconds", type=float, default=0)
    args = parser.parse_args()
    runner = Shapes(args, "shapes-" + args.what)
    cases[args.what](runner)
    runner.finish(f"{runner.done} done")


if __name__ == "__main__":
    main()
