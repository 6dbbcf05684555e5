#!/usr/bin/env python3
"""Checkpoints of whole programs.

  checkpoint.py exact    N steps = k steps, resume, N - k steps, bit for bit: weights and what the log says, for some layouts
  checkpoint.py pairs    eight times from one plan to another: the same weights bit for bit, there and back again, and over
                         `--long` steps the losses of the run that was not interrupted
  checkpoint.py refuse   what is damaged, missing, of another run or model: one line, exit code, nothing changed
  checkpoint.py faults   every call that changes a file, while a checkpoint is written, fails, is cut short, or is the last one
                         before the rank is killed (the suite takes some of them)
  checkpoint.py kill     killed at random moments while saving: what is left is whole, and going on gives the same bits

Tolerance of losses between plans: 1e-5 relative. Sums in another order differ by about 1e-8, after 50 steps by 1e-7; the
rest is room for a token whose choice of experts is as good as a tie.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
import zlib

from layouts import LAYOUT, MODEL, Runner, read, spec_text

RTOL = 1e-5
BATCH = 12
SMALL = dict(layers=6)
TIMES = ("step_ms", "tokens_per_s")

PLANS = dict(
    separate=dict(ratio=(2, 3), p_att=2, p_ffn=2),
    wide=dict(ratio=(1, 4)),
    uneven=dict(ratio=(2, 1), p_att=2, p_ffn=3, uneven=True),
    replicas=dict(ratio=(1, 2), replicas=2, node=2),
    colocated=dict(ratio=(2, 2), place="colocated", p_att=2),
    afd=dict(system="afd", ratio=(3, 2)),
    megatron=dict(system="megatron", p=2, v=2, ep=2),
    dualpipe=dict(system="dualpipe", p=2, ep=2),
    tutel=dict(system="tutel", chunks=2, p=2, ep=3),
)
PAIRS = [("separate", "wide"), ("wide", "uneven"), ("uneven", "replicas"), ("replicas", "colocated"), ("colocated", "afd"),
         ("separate", "megatron"), ("megatron", "dualpipe"), ("dualpipe", "separate")]
SHAPED = ("uneven", "replicas", "dualpipe")  # these programs have two shapes, which take turns
TURNS = "s:2,t:1"


def write(path, content):
    with open(path, "wb") as f:
        f.write(content)


def rows(path, first=0):
    """What the log says, without times."""
    found = [json.loads(line) for line in open(path)]
    return [{k: v for k, v in row.items() if k not in TIMES} for row in found if row["step"] > first]


class Checkpoints(Runner):
    def make(self, plan, shaped=False, **model):
        c = {**MODEL, **LAYOUT, **SMALL, **PLANS[plan], **model}
        shapes = f"shape s {{ seq = 16; micro_batch = 1; global_batch = {BATCH} }}"
        if shaped:
            shapes += f" shape t {{ seq = 9; micro_batch = 1; global_batch = {BATCH} }}"
        text = spec_text(c, shapes)
        name = f"{plan}{'2' if shaped else ''}-{zlib.crc32(text.encode()):08x}"
        bundle = os.path.join(self.work, name)
        if not os.path.exists(bundle):
            quickly = ["--cflags=-O0"] if model else []
            self.compile(text, *quickly, name=name)
        return Program(self, bundle, shaped)

    def expect(self, good, label, what=""):
        self.done += 1
        return super().expect(good, label, what)


class Program:
    def __init__(self, runner, bundle, shaped):
        self.runner = runner
        self.bundle = bundle
        self.command = [f"{bundle}/train", "--data", runner.token_file(MODEL["vocab"]), "--format", "uint16", "--holdout", "0"]
        self.command += ["--shapes", TURNS] if shaped else []

    def path(self, name):
        return f"{self.bundle}.{name}"

    def folder(self, name):
        shutil.rmtree(self.path(name), ignore_errors=True)
        return self.path(name)

    def train(self, steps, *more, env=None):
        return self.runner.run(*self.command, "--steps", str(steps), *more, env=env)

    def fails(self, steps, *more, code=1, **how):
        """Must fail with one line of error, which is returned."""
        proc = subprocess.run([*self.command, "--steps", str(steps), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, text=True, **{"env": self.runner.env, **how})
        errors = [x for x in proc.stderr.splitlines() if x.startswith("train: error:")]
        if proc.returncode != code or len(errors) != 1:
            return f"exit code {proc.returncode}, not {code}, and {len(errors)} errors: {proc.stderr}"
        return errors[0]

    def weights(self, steps, *more):
        path = self.path("w")
        self.train(steps, "--dump-weights", path, *more)
        return read(path)


def files_of(folder):
    return {name: read(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def exact(r):
    """20 steps, 7 + 13, 7 + 6 + 7; under delays; saved twice without a step between."""
    steps, cuts = (20, (7, 13)) if r.args.long else (8, (3, 5))
    plans = PLANS if r.args.long else ("separate", "dualpipe")
    for plan in plans:
        p = r.make(plan, plan in SHAPED, **({"dtype": "bf16"} if r.args.long and plan == "separate" else {}))
        straight = p.weights(steps, "--log", p.path("log"))
        wanted = rows(p.path("log"))
        for slow in ({}, {"MOE_TEST_SAVE_DELAY": "3000", "MOE_TEST_DELAY": "300,2", "MOE_POISON": "1"}):
            env = {**r.env, **slow}
            dir = p.folder("ck")
            p.train(cuts[0], "--save", dir, "--log", p.path("log2"), env=env)
            p.train(cuts[1], "--save", dir, "--resume", dir, "--log", p.path("log2"), env=env)
            p.train(steps, "--save", dir, "--resume", dir, "--log", p.path("log2"), "--dump-weights", p.path("w2"), env=env)
            r.expect(read(p.path("w2")) == straight, f"{plan} {slow}", "weights differ")
            r.expect(rows(p.path("log2")) == wanted, f"{plan} {slow}", "logs differ")
            r.expect(sorted(os.listdir(dir)) == [f"step-{k:06d}" for k in (*cuts, steps)], f"{plan} {slow}", os.listdir(dir))
        last = os.path.join(dir, f"step-{steps:06d}")
        p.train(steps, "--save", p.folder("again"), "--resume", last)
        again = os.path.join(p.path("again"), f"step-{steps:06d}")
        r.expect(files_of(last) == files_of(again), plan, "saved again without a step, other bytes")
        p.train(steps, "--save", p.folder("every"), "--save-every", "1", "--keep-last", "2")
        r.expect(sorted(os.listdir(p.path("every"))) == [f"step-{k:06d}" for k in (steps - 1, steps)], plan,
                 os.listdir(p.path("every")))
        every = os.path.join(p.path("every"), f"step-{steps:06d}")
        r.expect(files_of(last) == files_of(every), plan, "saving between changed the bytes")
    biases(r)
    start(r)
    data(r)
    beside(r)


def biases(r):
    """Selection biases move by steps that bf16 cannot tell: a checkpoint must not round them."""
    p = r.make("wide", router="sigmoid_bias", dtype="bf16")
    straight = p.weights(8)
    saved = p.weights(5, "--save", p.folder("bias"))
    r.expect(p.weights(5, "--resume", p.path("bias")) == saved, "biases", "other weights than were saved")
    r.expect(p.weights(8, "--resume", p.path("bias")) == straight, "biases", "weights differ")


def start(r):
    """A checkpoint of step 0, and one whose seed and program differ from the defaults."""
    p = r.make("wide")
    straight = p.weights(4, "--seed", "18446744073709551615")
    p.train(0, "--save", p.folder("zero"), "--seed", "18446744073709551615")
    r.expect(os.listdir(p.path("zero")) == ["step-000000"], "step 0", os.listdir(p.path("zero")))
    r.expect(p.weights(4, "--resume", p.path("zero")) == straight, "step 0", "the seed was not taken from the checkpoint")


def data(r):
    """Of data whose order is made for the whole run, the order is kept; other data are refused."""
    p = r.make("wide")
    one, two = p.path("one"), p.path("two")
    write(one, bytes(i * i % 61 for i in range(3000)))
    write(two, bytes(i % 64 for i in range(2000)))
    blend = ["--data", f"0.7:{one},0.3:{two}", "--format", "bytes"]
    straight = p.weights(6, *blend)
    p.train(6, "--save", p.folder("blend"), "--save-every", "2", *blend)
    half = os.path.join(p.path("blend"), "step-000004")
    r.expect(p.weights(6, "--resume", half, *blend) == straight, "blend", "other bits")
    error = p.fails(7, "--resume", half, *blend)
    r.expect("--steps 7 take 84 sequences" in error and "is made for 72" in error, "blend", error)
    p.train(5, "--resume", half, *blend)
    error = p.fails(6, "--resume", half)
    r.expect("cannot go on with the same tokens" in error, "other data", error)


def beside(r):
    """Steps go on while a checkpoint is written; the next one waits for it; a long save is no silence."""
    p = r.make("wide")
    slow = {**r.env, "MOE_TEST_SAVE_DELAY": "10000"}  # a rank has about 120 tensors, so a save takes longer than a second
    said = p.train(6, "--save", p.folder("slow"), "--save-every", "2", env=slow)
    lines = [x for x in said.splitlines() if re.match(r"step |saved ", x)]
    at = {x.split("  ")[0].split(" (")[0]: i for i, x in enumerate(lines)}
    r.expect(at["saved step 2"] > at["step 4/6"], "beside", said)
    saved = [int(x.split()[2]) for x in lines if x.startswith("saved")]
    r.expect(saved == [2, 4, 6], "beside", said)
    r.expect(all(re.fullmatch(r"saved step \d+ \([\d.]+ [kMG]B in [\d.]+ s\)", x) for x in lines if x[:2] == "sa"), "beside", said)
    slow["MOE_TEST_SAVE_DELAY"] = "20000"
    p.train(1, "--save", p.folder("slow"), "--timeout", "1", env=slow)


def pairs(r):
    """From plan to plan. Without a step in between nothing may change but who holds what: back in the first plan, the run
    goes on bit for bit."""
    first, then = 3, r.args.long or 3
    for one, two in PAIRS:
        label = f"{one} to {two}"
        shaped = one in SHAPED and two in SHAPED or one == "uneven" or two == "uneven"
        a, b = r.make(one, shaped), r.make(two, shaped)
        straight = a.weights(first + then, "--log", a.path("log"))
        there, back = a.folder("there"), b.folder("back")
        at_first = a.weights(first, "--save", there)
        said = b.train(first, "--resume", there, "--save", back, "--dump-weights", b.path("w"))
        r.expect("with another plan" in said, label, said)
        r.expect(read(b.path("w")) == at_first, label, "weights have changed on the way")
        r.expect(a.weights(first + then, "--resume", back) == straight, label, "not the same bits after the way back")
        write(b.path("log2"), b"")
        b.train(first + then, "--resume", there, "--log", b.path("log2"))
        wanted, got = rows(a.path("log"), first), rows(b.path("log2"))
        r.expect([x["step"] for x in got] == [x["step"] for x in wanted] and len(got) == then, label, "other steps")
        worst = max(abs(x["loss"] / y["loss"] - 1) for x, y in zip(got, wanted))
        r.expect(worst <= RTOL, label, f"losses differ by {worst}")
        print(f"{label}: losses differ by up to {worst:.1e} over {then} steps", flush=True)


def flip(path, at):
    content = bytearray(read(path))
    content[at] ^= 1
    write(path, bytes(content))


def refuse(r):
    p = r.make("wide")
    good = p.folder("good")
    p.train(6, "--save", good, "--save-every", "2")
    bad = p.path("bad")
    last = os.path.join(bad, "step-000006")
    rank = lambda k, step=6: os.path.join(bad, f"step-{step:06d}", f"rank-{k:05d}-of-00005.safetensors")
    manifest = os.path.join(last, "manifest.json")
    straight = p.weights(8)
    size = os.path.getsize(rank(1).replace("bad", "good"))
    header = int.from_bytes(read(rank(1).replace("bad", "good"))[:8], "little")

    def swap():
        os.rename(rank(1), rank(1) + "x")
        os.rename(rank(2), rank(1))
        os.rename(rank(1) + "x", rank(2))

    def cut(path, n):
        return lambda: os.truncate(path, n)

    rng = random.Random(1)
    text = len(read(manifest.replace("bad", "good")))
    damages = [(cut(rank(1), n), "truncated|too few") for n in (0, 4, 8, 8 + header // 2, 8 + header, size // 2, size - 1)]
    damages += [(lambda at=at: flip(rank(1), at), r"rank-00001") for at in (0, 1, 7, 8, 9, 8 + header - 1)]
    damages += [(lambda at=at: flip(rank(1), at), r"rank-00001.*tensor \S+ does not match its checksum")
                for at in (8 + header, size // 2, size - 1, *(rng.randrange(8 + header, size) for _ in range(3)))]
    damages += [(lambda: os.remove(rank(3)), r"rank-00003.*No such file"), (lambda: os.remove(manifest), "holds no checkpoint, but rank-"),
                (lambda: shutil.copy(rank(2, 4), rank(2)), r"rank-00002\S* is of step 4, its checkpoint of step 6"),
                (swap, "is the file of rank"), (lambda: write(rank(1), read(rank(1)) + b"x"), "bytes"),
                (lambda: shutil.copy(rank(1), os.path.join(last, "rank-00005-of-00006.safetensors")), "rank-00005-of-00006.*5 files"),
                (lambda: shutil.copy(rank(1, 2), rank(1)) and flip(rank(1), 0), "rank-00001"),
                (lambda: (os.remove(rank(0)), os.mkdir(rank(0))), "rank-00000"),
                (cut(manifest, 0), "manifest.json: it is damaged"), (cut(manifest, text - 1), "it is damaged"),
                (cut(manifest, text // 2), "it is damaged"),
                *((lambda at=at: flip(manifest, at), "it is damaged") for at in (0, text // 3, text - 2, text - 1))]
    for i, (damage, said) in enumerate(damages):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        damage()
        write(p.path("log"), b"old\n")
        error = p.fails(8, "--resume", last, "--log", p.path("log"))
        r.expect(re.search(said, error), f"damage {i}", f"{error}, expected {said}")
        r.expect(read(p.path("log")) == b"old\n", f"damage {i}", "the log was touched")
        if i % 10 == 0:  # of a folder, the one before it is taken, and the run makes the damaged one again
            out = p.train(8, "--resume", bad, "--save", bad, "--save-every", "2", "--dump-weights", p.path("w"))
            r.expect("trying the one before" in out and "going on after step 4" in out, f"damage {i}", out)
            r.expect(read(p.path("w")) == straight, f"damage {i}", "other bits from the one before it")
            left = [f"step-{k:06d}" for k in (2, 4, 6, 8)] + ["step-000006.damaged"]
            r.expect(sorted(os.listdir(bad)) == sorted(left), f"damage {i}", os.listdir(bad))
    shutil.rmtree(bad)
    os.makedirs(last)
    for step in (2, 4):
        os.makedirs(os.path.join(bad, f"step-{step:06d}"))
    r.expect("step-000002/manifest.json" in p.fails(8, "--resume", bad), "all damaged", "")
    models(r, p, good)
    folders(r, p, good, straight)
    disk_full(r, p, good, straight)


def models(r, p, good):
    """Another model: every setting that differs, with both values; other training settings are only told."""
    error = r.make("wide", ffn=16, top_k=3, coef=0.03).fails(8, "--resume", good)
    for said in ("moe.hidden is 32, here 16", "moe.top_k is 2, here 3", "moe.balance.coef is 0.02, here 0.03"):
        r.expect(said in error and error.count(" here ") == 3, "model", error)
    out = r.make("wide", dtype="bf16").train(8, "--resume", good)
    r.expect("other settings: dtype is fp32, here bf16" in out, "dtype", out)
    r.expect("has seed 7" in p.fails(8, "--resume", good, "--seed", "8"), "seed", "")
    p.train(8, "--resume", good, "--seed", "7")


def folders(r, p, good, straight):
    link, copy, empty = p.path("link"), p.folder("copy"), p.folder("empty")
    if not os.path.lexists(link):
        os.symlink(os.path.basename(copy), link)
    shutil.copytree(good, copy)
    os.mkdir(os.path.join(copy, "step-000009.tmp"))  # as a crash leaves it
    write(os.path.join(copy, "step-000009.tmp", "rank-00000-of-00005.safetensors"), b"half")
    os.makedirs(empty)
    for steps in (6, 3):
        out = p.train(steps, "--resume", good)
        r.expect(f"nothing is left to train: --steps {steps}" in out, "no steps left", out)
    r.expect("was to be traced or dumped" in p.fails(6, "--resume", good, "--dump-grads", p.path("g")), "no step to dump", "")
    r.expect("No such file" in p.fails(8, "--resume", p.path("none")), "missing", "")
    r.expect("not a folder" in p.fails(8, "--resume", p.path("moespec")), "file", "")
    r.expect("holds no checkpoint" in p.fails(8, "--resume", empty), "empty", "")
    write(os.path.join(empty, "thesis.tex"), b"x")
    r.expect("thesis.tex, which is no checkpoint" in p.fails(8, "--save", empty), "other content", "")
    r.expect(os.listdir(empty) == ["thesis.tex"], "other content", os.listdir(empty))
    r.expect("No such file" in p.fails(8, "--save", os.path.join(p.path("none"), "a")), "no parent", "")
    r.expect("Not a directory" in p.fails(8, "--save", p.path("moespec")), "a file", "")
    r.expect("of another run, up to step 6" in p.fails(8, "--save", good), "another run", "")
    error = p.fails(8, "--save", good, "--resume", os.path.join(good, "step-000002"))
    r.expect("a checkpoint of step 6, after step 2" in error, "later ones", error)
    r.expect(sorted(os.listdir(good)) == [f"step-{k:06d}" for k in (2, 4, 6)], "refused", os.listdir(good))
    for option in ("--save-every", "--keep-last"):
        r.expect("without --save" in p.fails(8, option, "2", code=2), option, "")
        r.expect("at least 1" in p.fails(8, "--save", empty, option, "0", code=2), option, "")
    r.expect(p.weights(8, "--resume", link, "--save", link, "--keep-last", "2") == straight, "link", "other bits")
    r.expect(sorted(os.listdir(copy)) == ["step-000006", "step-000008"] and os.path.islink(link), "link", os.listdir(copy))
    locked = subprocess.Popen([*p.command, "--steps", "9", "--resume", copy, "--save", copy], stderr=subprocess.DEVNULL,
                              env={**r.env, "MOE_TEST_SAVE_DELAY": "200000"})
    while not os.path.exists(os.path.join(copy, "step-000009.tmp")) and locked.poll() is None:
        time.sleep(0.01)
    r.expect("another run is saving there" in p.fails(10, "--resume", copy, "--save", copy), "two runs", "")
    r.expect(locked.wait() == 0 and os.path.isdir(os.path.join(copy, "step-000009")), "two runs", os.listdir(copy))
    os.chmod(empty, 0o555)
    os.remove(os.path.join(empty, "thesis.tex"))
    if os.getuid() == 0:
        for path in (r.work, r.args.work):
            os.chmod(path, 0o755)
    user = dict(user=65534) if os.getuid() == 0 else {}
    error = p.fails(1, "--save", empty, **user)
    r.expect("cannot save into" in error and "Permission denied" in error, "read-only", error)


def disk_full(r, p, good, straight):
    """A file cannot grow beyond so many bytes: the run ends with one line at the end of a step, older ones stay."""
    full = p.folder("full")
    before = files_of(os.path.join(good, "step-000006"))
    largest = max(map(len, before.values()))
    smallest = min(len(x) for name, x in before.items() if name != "manifest.json")
    for limit in (smallest - 1, largest - 1):
        shutil.rmtree(full, ignore_errors=True)
        shutil.copytree(good, full)
        limits = lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        error = p.fails(20, "--resume", full, "--save", full, "--save-every", "1", "--keep-last", "1", preexec_fn=limits)
        r.expect(re.search(r"while writing files: cannot write \S*step-000007.tmp/rank-\S+: File too large", error), "full", error)
        r.expect(files_of(os.path.join(full, "step-000006")) == before, "full", os.listdir(full))
    r.expect(p.weights(8, "--resume", full, "--save", full) == straight, "full", "other bits after the disk was full")
    r.expect(not [x for x in os.listdir(full) if "tmp" in x], "full", os.listdir(full))


def faults(r):
    """Afterwards the older checkpoint is as it was, and going on from what is there gives the same bits. An error is one line
    that names a file; where only an old checkpoint could not be removed, the run goes on."""
    p = r.make("wide")
    good, dir = p.folder("good"), p.path("ck")
    p.train(1, "--save", good)
    before = files_of(os.path.join(good, "step-000001"))
    straight = p.weights(3)
    steps = ["--resume", dir, "--save", dir, "--save-every", "1", "--keep-last", "1"]

    def run(rank, call, what):
        shutil.rmtree(dir, ignore_errors=True)
        shutil.copytree(good, dir)
        env = {**r.env, "LD_PRELOAD": r.args.fault, "FAULT_AT": f"step-000002.tmp/rank-{rank:05d}", "FAULT_CALL": str(call),
               "FAULT_DO": what, "FAULT_COUNT": p.path("count")}
        return subprocess.run([*p.command, "--steps", "2", *steps], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                              text=True, env=env)

    rng = random.Random(2)
    for rank in (0, 2):
        proc = run(rank, 0, "count")
        calls = int(read(p.path("count")))
        r.expect(proc.returncode == 0 and calls > 50, "count", f"{calls} calls; {proc.stderr}")
        ends = [*range(5), *range(calls - 9, calls)] if rank == 0 else [3, calls - 2, calls - 1]
        every = sorted({*range(10), *range(10, calls, 9), *range(calls - 20, calls)})  # those in the middle write a tensor each
        for call in every if r.args.long else ends:
            few = rng.sample(("28", "5", "4", "short", "kill"), 2) if rank == 0 else ("28", "4")
            for what in ("28", "5", "122", "4", "short", "kill") if r.args.long else few:
                label = f"rank {rank} call {call} of {calls}: {what}"
                proc = run(rank, call, what)
                errors = [x for x in proc.stderr.splitlines() if x.startswith("train: error:")]
                harmless = what in ("4", "short")
                old = os.path.join(dir, "step-000001")
                whole = os.path.isdir(os.path.join(dir, "step-000002"))
                told = "cannot remove the old checkpoint" in proc.stderr
                r.expect(proc.returncode == len(errors) and len(errors) <= 1, label, proc.stderr)
                r.expect(errors or harmless or what == "kill" or told, label, proc.stderr)
                r.expect(not errors or not harmless, label, proc.stderr)
                r.expect(what == "kill" or not errors or re.search(r"cannot \w+ \S*ck\S*( to \S+)?: ", errors[0]), label, errors)
                r.expect(whole or files_of(old) == before, label, os.listdir(dir))
                if r.args.long or call % 3 == 0:
                    r.expect(p.weights(3, *steps) == straight, label, "other bits afterwards")
                    r.expect(not [x for x in os.listdir(dir) if "." in x], label, os.listdir(dir))


def kill(r):
    """SIGKILL of the launcher or of one rank while every step is saved; then the next run goes on."""
    rng = random.Random(r.args.long)
    p = r.make("replicas", True)
    steps, kills = (60, r.args.long) if r.args.long else (25, 6)
    straight = p.weights(steps, "--log", p.path("log"))
    wanted = {(x["step"]): x for x in rows(p.path("log"))}
    dir = p.folder("ck")
    env = {**r.env, "MOE_TEST_SAVE_DELAY": "1000"}
    seen = halves = 0
    for i in range(kills):
        job = subprocess.Popen([*p.command, "--steps", str(steps), "--save", dir, "--save-every", "1", "--keep-last", "3",
                                "--log", p.path("log2"), "--resume", dir], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
        pids = [job.pid]
        time.sleep(0.1 + rng.random() * (0.6 if i else 0.2))
        try:
            with open(f"/proc/{job.pid}/task/{job.pid}/children") as f:
                pids += map(int, f.read().split())
            os.kill(rng.choice(pids), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass
        said = job.communicate(timeout=60)[0].decode()
        r.expect("trying the one before" not in said, f"kill {i}", said)
        seen += job.returncode != 0
        halves += os.path.isdir(dir) and any("tmp" in x for x in os.listdir(dir))
    p.train(steps, "--save", dir, "--resume", dir, "--log", p.path("log2"), "--dump-weights", p.path("w2"))
    r.expect(read(p.path("w2")) == straight, "kill", "other bits")
    r.expect(all(wanted[x["step"]] == x for x in rows(p.path("log2"))), "kill", "other losses")
    r.expect(not [x for x in os.listdir(dir) if "." in x], "kill", os.listdir(dir))
    r.expect(seen > kills // 2, "kill", f"only {seen} of {kills} runs were killed before their end")
    print(f"{seen} of {kills} runs killed, {halves} left a half checkpoint")


def main():
    parser = argparse.ArgumentParser()
    cases = dict(exact=exact, pairs=pairs, refuse=refuse, faults=faults, kill=kill)
    parser.add_argument("what", choices=cases)
    for flag in ("--moec", "--work"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--fault", help="what `faults` preloads")
    parser.add_argument("--long", type=int, default=0, help="steps of `pairs`, kills of `kill`; not 0: all of the others; 0: few")
    args = parser.parse_args()
    runner = Checkpoints(args, f"checkpoint{args.long}-{args.what}")
    cases[args.what](runner)
    runner.finish(f"{runner.done} done")


if __name__ == "__main__":
    main()
