"""Runs `train` with the fake bundle as users and operators do: many layouts, test switches, files, faults.

usage: runtime_test.py PROGRAM CASE [arguments]
"""

import json
import os
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.abspath(sys.argv[1])

LAYOUTS = [
    "a=1 f=1",
    "a=2 f=1",
    "a=1 f=2",
    "a=3 f=2 seqs=3",
    "a=2 f=3",
    "a=1 f=8 mbs=1",
    "a=2 f=2 replicas=2",
    "a=2 f=2 replicas=2 pa=2 pf=2 layers=4",
    "a=1 f=4 rpn=2 relay=1",
    "a=2 f=4 rpn=2 relay=1 layers=3 pa=2",
    "a=3 f=3 rpn=4 relay=1 mbs=3 seqs=4 short=1 seq=5",
    "a=2 f=3 rpn=5 relay=1 replicas=2",
    "a=2 f=4 rpn=3 relay=1 mixed=1",
    "a=3 f=5 rpn=4 relay=1 mixed=1 layers=3",
    "a=2 f=4 rpn=6 relay=1 mixed=1 pa=2 pf=2 layers=4 replicas=2",
    "a=2 colocated=1 pa=2 layers=4",
    "a=4 colocated=1 rpn=2 relay=1",
    "a=1 colocated=1",
    "a=3 f=2 mbs=4 seqs=3 short=2 layers=3 pa=2 pf=3",
    "a=2 f=1 seqs=1 mbs=2",
    "a=2 colocated=1 pa=2 layers=4 join=1",
    "a=1 colocated=1 pa=3 layers=5 join=1 mbs=4 seqs=1",
    "a=3 f=2 join=1 pa=2 layers=3 seqs=4 short=1",
    "a=2 f=4 join=1 rpn=2 relay=1 layers=3 pa=2",
    "a=2 colocated=1 pa=2 layers=4 join=1 ways=2 mbs=4",
    "a=1 colocated=1 pa=4 layers=6 join=1 ways=2 mbs=5 seqs=1 replicas=2",
    "a=2 f=2 pa=2 pf=2 layers=4 ways=2 mbs=3 seqs=3 short=2",
    "a=2 colocated=1 chunks=2",
    "a=2 f=3 chunks=4 seq=7 seqs=3",
    "a=2 colocated=1 pa=2 layers=4 join=1 chunks=3 seq=2 mbs=3",
    "a=2 colocated=1 pa=2 layers=4 join=1 ways=2 chunks=2 mbs=4 seqs=3 short=2 replicas=2",
]


# Programs with several shapes. `turn`: steps in a row, as in --shapes.
SHAPES = [
    "a=2 f=2; seq=5 mbs=3",
    "a=2 f=4 rpn=2 relay=1 layers=3 pa=2 turn=2; seq=3 mbs=1 seqs=4; seq=13 mbs=4 turn=3 short=1",
    "a=2 f=2 replicas=2 pa=2 pf=2 layers=4; seq=9 mbs=1 seqs=3 turn=2",
    "a=2 colocated=1 pa=2 layers=4 join=1 ways=2 mbs=4; seq=2 mbs=5 seqs=3 short=2",
    "a=2 f=3 chunks=2; seq=7 chunks=4 mbs=3; seq=3 chunks=1",
]


def check(condition, text):
    if not condition:
        raise SystemExit("FAILED: " + text)


def environment(layout, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MOE_")}
    env["FAKE"] = layout
    env.update(more)
    return env


def train(layout, *args, timeout=60, preexec_fn=None, **more):
    """Runs to the end; returns (exit code, stderr)."""
    done = subprocess.run([PROGRAM, *args], env=environment(layout, **more), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout, text=True, preexec_fn=preexec_fn)
    return done.returncode, done.stderr


def start(layout, *args):
    return subprocess.Popen([PROGRAM, *args], env=environment(layout), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except FileNotFoundError:
        return []


def is_running(pid):
    """A zombie whose new parent has not reaped it does not run."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_ranks(process, n):
    limit = time.monotonic() + 10
    while len(children(process.pid)) < n:
        check(time.monotonic() < limit, f"{n} ranks did not start")
        time.sleep(0.005)
    return children(process.pid)


def wait_gone(pids, seconds):
    limit = time.monotonic() + seconds
    while any(is_running(p) for p in pids):
        check(time.monotonic() < limit, f"processes {[p for p in pids if is_running(p)]} are left after {seconds} s")
        time.sleep(0.01)


def errors_of(text):
    return [line for line in text.splitlines() if line.startswith("train: error:")]


def sanitizers(text):
    check("Sanitizer" not in text and "runtime error" not in text, "a sanitizer reports:\n" + text[:4000])


def layouts(*args, **more):
    for layout in LAYOUTS:
        code, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", "3", *args, **more)
        sanitizers(err)
        check(code == 0, f"{layout}: exit code {code}\n{err}")
        check(re.search(r"step 3/3  loss 1\.0000", err), f"{layout}: no loss of 1 at the last step\n{err}")


def case_layouts():
    layouts()
    layouts(MOE_POISON="1")
    layouts(MOE_TEST_SERIAL="1")


def turns_of(layout):
    found = [re.search(r"turn=(\d)", shape) for shape in layout.split(";")]
    first = found[0].group(1) if found[0] else "1"
    return [int(f.group(1) if f else first) for f in found]


def case_shapes():
    """Switching shapes between steps: weights, slots and messages stay right, with every test switch; and each alone."""
    for layout in SHAPES:
        turns = turns_of(layout)
        words = ",".join(f"s{i}:{n}" for i, n in enumerate(turns))
        order = [f"s{i}" for i, n in enumerate(turns) for _ in range(n)]
        steps = 2 * len(order) + 1
        for more in ({}, dict(MOE_POISON="1"), dict(MOE_TEST_SERIAL="1"), dict(MOE_TEST_SYNC_SEND="1"),
                     dict(MOE_TEST_DELAY="300,3"), dict(args=("--link", "100MB/s", "--compute-scale", "2"))):
            args = more.pop("args", ())
            code, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", str(steps), "--shapes", words, "--log",
                              "l.jsonl", *args, **more)
            sanitizers(err)
            check(code == 0, f"{layout}: exit code {code}\n{err}")
            rows = [json.loads(line) for line in open("l.jsonl")]
            check([r["shape"] for r in rows] == (3 * order)[:steps], f"{layout}: {rows}")
            check(all(r["loss"] == 1 for r in rows), f"{layout}: {rows}")
        for i in range(len(turns)):  # weights are checked against the turns: of the others none
            alone = "; ".join(f"{shape} turn={int(k == i)}" for k, shape in enumerate(layout.split(";")))
            code, err = train(alone, "--data", DATA, "--holdout", "0", "--steps", "3", "--shape", f"s{i}")
            check(code == 0 and re.search(rf"step 3/3  s{i}  loss 1\.0000", err), f"{alone}: exit code {code}\n{err}")
    batches = []
    for turns, steps in (("s1:1", 2), ("s0:2,s1:1", 6)):  # the second step of s1, either way
        layout = SHAPES[0].replace("f=2", f"f=2 turn={0 if steps == 2 else 2}") + " turn=1"
        code, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", str(steps), "--shapes", turns, "--dump-batch",
                          "b.bin", "--trace", "t.json")
        check(code == 0, err)
        batches.append(open("b.bin", "rb").read())
        events = [e for e in json.load(open("t.json"))["traceEvents"] if e["ph"] == "X"]
        check(max(e["args"]["mb"] for e in events) == 2, "the trace is not that of the shape with three micro-batches")
    check(batches[0] == batches[1] and len(batches[0]) == 3 * 2 * 6 * 4, "a shape's batches depend on the others")


def case_shape_flags():
    for args, pattern in ((("--shape", "s2"), "no shape s2; it has: s0, s1"), (("--shapes", "s0:1,x:2"), "no shape x"),
                          (("--shapes", "s0:0"), "number of steps after s0:"), (("--shapes", "s0:"), "number of steps"),
                          (("--shapes", "s0:1,"), "name of a shape is empty"), (("--shapes", "s0:1x"), "number of steps"),
                          (("--shapes", ""), "names of shapes"), (("--shape", ""), "names of shapes"), (("--shape", "s0", "--shapes", "s1"), "choose one")):
        code, err = train(SHAPES[0], "--data", DATA, "--steps", "1", *args)
        check(code == 2 and len(errors_of(err)) == 1 and pattern in err, f"{args}: {code} {err}")
    code, err = train("a=2 f=2 fail=9; seq=5 mbs=3 fail=2", "--data", DATA, "--holdout", "0", "--steps", "6", "--shapes",
                      "s0,s1")
    check(code == 1 and "in step 4, running FFN_FWD" in err, err)
    code, err = train(SHAPES[0], "--plan")
    check(code == 0, err)
    code, err = train("a=2 f=2 turn=0; seq=5 mbs=3 turn=1", "--data", DATA, "--holdout", "0.5", "--steps", "1", "--log",
                      "l.jsonl", "--shape", "s1")
    rows = [json.loads(line) for line in open("l.jsonl")]
    check(code == 0 and [r["shape"] for r in rows] == ["s1", "s1"] and "eval_loss" in rows[1], err)


def case_sync_send():
    layouts(MOE_TEST_SYNC_SEND="1")


def case_delays():
    for seed in range(2):
        layouts(MOE_TEST_DELAY=f"500,{seed}")
    layouts(MOE_TEST_DELAY="500,9", MOE_TEST_SYNC_SEND="1")


def case_paced():
    layouts("--link", "100MB/s", "--compute-scale", "2")
    layouts("--link", "100MB/s", MOE_TEST_SERIAL="1", MOE_TEST_SYNC_SEND="1")


def case_kill():
    """SIGKILL to each rank at moments by the seed: a number, or "random"."""
    times, seed = int(sys.argv[3]), sys.argv[4]
    seed = int(os.environ.get("MOE_SEED", random.randrange(1 << 30) if seed == "random" else seed))
    print("MOE_SEED =", seed)
    rng = random.Random(seed)
    for i in range(times):
        layout, n = rng.choice([("a=2 f=2 spin=100", 4), ("a=2 f=2 replicas=2 spin=50", 8), ("a=1 f=1 spin=100", 2)])
        process = start(layout, "--data", DATA, "--holdout", "0", "--steps", "1000000")
        ranks = wait_for_ranks(process, n)
        rank = i % n
        time.sleep(rng.random() * 0.3)
        os.kill(ranks[rank], signal.SIGKILL)
        begin = time.monotonic()
        _, err = process.communicate(timeout=10)
        took = time.monotonic() - begin
        wait_gone(ranks, 1)
        check(process.returncode == 1, f"exit code {process.returncode}")
        check(took < 5, f"took {took:.1f} s to end")
        lines = errors_of(err)
        check(len(lines) == 1, f"not one error line:\n{err}")
        check(lines[0].startswith(f"train: error: rank {rank} (") and "signal 9" in lines[0], lines[0])


def case_signals():
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for whole_group in (False, True):  # kill, or Ctrl-C in a terminal
            process = start("a=2 f=2 spin=100", "--data", DATA, "--holdout", "0", "--steps", "1000000")
            ranks = wait_for_ranks(process, 4)
            time.sleep(0.1)
            if whole_group and sig != signal.SIGTERM:
                os.killpg(process.pid, sig)
            else:
                os.kill(process.pid, sig)
            _, err = process.communicate(timeout=10)
            check(process.returncode == 128 + sig, f"exit code {process.returncode} after signal {sig}\n{err}")
            wait_gone(ranks, 1)


def case_launcher_killed():
    for delay in (0, 0.01, 0.2):
        process = start("a=2 f=2 spin=100", "--data", DATA, "--holdout", "0", "--steps", "1000000")
        ranks = wait_for_ranks(process, 4)
        time.sleep(delay)
        process.kill()
        wait_gone(ranks, 5)
        process.communicate(timeout=10)


def case_faults():
    def one(layout, *patterns, args=(), code=1):
        got, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", "5", *args)
        check(got == code, f"{layout}: exit code {got}\n{err}")
        lines = errors_of(err)
        check(len(lines) == 1, f"{layout}: not one error line\n{err}")
        for pattern in patterns:
            check(re.search(pattern, lines[0]), f"{layout}: no /{pattern}/ in {lines[0]}")

    one("a=2 f=1 exit=2", r"rank 2 \(FFN group F0", r"exit code 0", r"in step 2", r"FFN_FWD layer 0 micro-batch 0")
    one("a=2 f=2 fail=3", r"rank [23] \(FFN group F0", r"in step 3, running FFN_FWD layer 0 micro-batch 0: more rows")
    one("a=2 f=2 wrong=2", r"rank [23] \(", r"RECV DISPATCH layer 0 micro-batch 0", r"stamped 08000010.*expects 08000000")
    one("a=2 f=2 nan=2 stop=1", r"step 2: loss nan")


def case_silent():
    process = start("a=2 f=1 spin=100", "--data", DATA, "--holdout", "0", "--steps", "1000000", "--timeout", "2")
    ranks = wait_for_ranks(process, 3)
    time.sleep(0.2)
    os.kill(ranks[1], signal.SIGSTOP)
    time.sleep(1)
    os.kill(ranks[1], signal.SIGCONT)  # shorter than the limit: goes on
    time.sleep(1.5)
    check(process.poll() is None, "a stop shorter than the limit ended the job")
    os.kill(ranks[1], signal.SIGSTOP)
    _, err = process.communicate(timeout=15)
    check(process.returncode == 1 and len(errors_of(err)) == 1, err)
    check("rank 1 (attention group A0, member 1), which is stopped" in err, err)
    wait_gone(ranks, 1)


def case_skip():
    code, err = train("a=2 f=2 nan=2", "--data", DATA, "--holdout", "0", "--steps", "4", "--log", "log.jsonl")
    check(code == 0 and "step 2: loss or gradient is not finite" in err, err)
    rows = [json.loads(line) for line in open("log.jsonl")]
    check([r["loss"] for r in rows] == [1, None, 1, 1], str(rows))


def read_safetensors(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    check((8 + n) % 8 == 0, "the data is not aligned")
    end = 0
    tensors = {}
    for name, t in header.items():
        begin, stop = t["data_offsets"]
        size = 4
        for d in t["shape"]:
            size *= d
        check(begin == end and stop - begin == size and t["dtype"] == "F32", f"{name}: {t}")
        end = stop
        tensors[name] = struct.unpack(f"<{size // 4}f", data[8 + n + begin:8 + n + stop])
    check(len(data) == 8 + n + end, "the file's size is wrong")
    return tensors


def case_files():
    """Gradients, weights, batch, trace and log of a layout whose results are known."""
    layout = "a=2 f=3 replicas=2 layers=3 mbs=2 seqs=4 seq=8"
    code, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", "3", "--dump-grads", "g.safetensors",
                      "--dump-weights", "w.safetensors", "--dump-batch", "b.bin", "--trace", "t.json", "--log", "l.jsonl",
                      "--dump-logits", "logits.safetensors")
    check(code == 0, err)
    grads = read_safetensors("g.safetensors")
    weights = read_safetensors("w.safetensors")
    adders = {"EMBED": 2, "ATT": 2, "GAIN": 5, "EXPERTS": 1, "HEAD": 2}
    check(len(grads) == 2 * (1 + 3 + 3 + 9 + 1) and grads.keys() == weights.keys(), f"{len(grads)} tensors")
    for name, values in grads.items():
        expected = adders[name.split(".")[0]] * 2 * 2
        check(all(v == expected for v in values), f"gradient of {name}: {values}")
        check(all(v == 1 + 3 * expected for v in weights[name]), f"weights of {name}")
    batch = open("b.bin", "rb").read()
    check(len(batch) == 4 * 16 * 9, f"batch of {len(batch)} bytes")
    tokens = struct.unpack(f"<{16 * 9}i", batch)
    data = open(DATA, "rb").read()
    for g in range(16):
        check(data.find(bytes(tokens[g * 9:g * 9 + 9])) % 8 == 0, "a sequence is no sample of the file")
    logits = read_safetensors("logits.safetensors")["logits"]  # the fake head writes a token's id first, its label last
    check(len(logits) == 16 * 8 * 256, f"{len(logits)} logits")
    for g in range(16):
        for t in range(8):
            row = logits[(g * 8 + t) * 256:(g * 8 + t + 1) * 256]
            check((row[0], row[255]) == tokens[g * 9 + t:g * 9 + t + 2] and not any(row[1:255]), f"sequence {g}, token {t}: {row}")
    events = [e for e in json.load(open("t.json"))["traceEvents"] if e["ph"] == "X"]
    check({e["pid"] for e in events} == set(range(10)), "not all ranks are in the trace")
    check(any(e["name"] == "SEND DISPATCH l0 m1" and e["tid"] == 2 for e in events), "no DISPATCH in the trace")
    check(all(e["ts"] >= 0 and e["dur"] >= 0 for e in events), "negative times")
    rows = [json.loads(line) for line in open("l.jsonl")]
    check([r["step"] for r in rows] == [1, 2, 3], str(rows))
    check(set(rows[0]) == {"step", "loss", "balance_loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "dropped"}, str(rows))
    total = sum(v * v for values in grads.values() for v in values)
    check(abs(rows[2]["grad_norm"] - total ** 0.5) < 1e-4, "the gradient norm counts a parameter more or less than once")
    code, err = train(layout, "--steps", "0", "--dump-weights", "w0.safetensors")
    check(code == 0 and all(v == 1 for t in read_safetensors("w0.safetensors").values() for v in t), err)
    check(not [f for f in os.listdir(".") if ".tmp" in f], "temporary files are left")
    closed = ["sh", "-c", '"$0" "$@" <&- >&- 2>&-', PROGRAM, "--data", DATA, "--holdout", "0", "--steps", "2", "--log", "l2.jsonl",
              "--dump-weights", "w2.safetensors"]
    check(subprocess.run(closed, env=environment("a=2 f=2"), timeout=60).returncode == 0, "fails without a terminal")
    check(len([json.loads(line) for line in open("l2.jsonl")]) == 2 and read_safetensors("w2.safetensors"), "stderr in a file")


def case_checkpoints():
    """Weights count the steps and moments add up, so what a checkpoint forgets or takes twice is seen."""
    data = ["--data", DATA, "--holdout", "0"]
    for i, layout in enumerate(["a=1 f=1", "a=3 f=2 seqs=3 layers=3 pa=2 pf=3 replicas=2", "a=2 f=4 rpn=2 relay=1 layers=3 pa=2",
                                "a=2 colocated=1 pa=2 layers=4 join=1 ways=2 mbs=4", "a=1 f=8 mbs=1"]):
        save = ["--save", f"c{i}", "--save-every", "2", "--keep-last", "2"]
        code, err = train(layout, *data, "--steps", "7", *save, "--dump-weights", "straight", "--log", "l.jsonl",
                          MOE_TEST_SAVE_DELAY="300")
        sanitizers(err)
        check(code == 0 and "saved step 7 (" in err, f"{layout}: {err}")
        check(sorted(os.listdir(f"c{i}")) == ["step-000006", "step-000007"], f"{layout}: {os.listdir(f'c{i}')}")
        code, err = train(layout + " done=6", *data, "--steps", "7", "--resume", f"c{i}/step-000006", "--dump-weights", "resumed",
                          "--save", f"d{i}", "--log", "l.jsonl", MOE_POISON="1")
        sanitizers(err)
        check(code == 0 and open("straight", "rb").read() == open("resumed", "rb").read(), f"{layout}: {err}")
        check([json.loads(line)["step"] for line in open("l.jsonl")] == [*range(1, 8), 7], "the log was not continued")
        for name in os.listdir(f"d{i}/step-000007"):
            one, two = (open(f"{x}{i}/step-000007/{name}", "rb").read() for x in "cd")
            check(one == two, f"{layout}: {name} differs")
    code, err = train("a=1 f=1", *data, "--steps", "9", "--resume", "c1")
    sanitizers(err)
    check(code == 1 and len(errors_of(err)) == 1 and "c1/step-000007" in err, err)
    rng = random.Random(3)
    for name in sorted(os.listdir("c0/step-000007")) * 20: # any bit, any length
        path = f"c0/step-000007/{name}"
        whole = open(path, "rb").read()
        bad = bytearray(whole[:rng.randrange(len(whole)) if rng.random() < 0.3 else None])
        if len(bad) == len(whole):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        open(path, "wb").write(bad)
        code, err = train("a=1 f=1", *data, "--steps", "9", "--resume", "c0/step-000007")
        sanitizers(err)
        check(code == 1 and len(errors_of(err)) == 1, f"a damaged {name}: {code} {err}")
        open(path, "wb").write(whole)


def case_failed_files():
    """A run that fails leaves neither the target nor a temporary file; an old target stays."""
    with open("old.safetensors", "w") as f:
        f.write("old")
    code, err = train("a=2 f=2 fail=2", "--data", DATA, "--holdout", "0", "--steps", "3", "--dump-grads",
                      "old.safetensors", "--dump-weights", "new.safetensors")
    check(code == 1 and open("old.safetensors").read() == "old", err)
    check(not [f for f in os.listdir(".") if "new" in f or ".tmp" in f], str(os.listdir(".")))
    code, err = train("", "--data", DATA, "--steps", "1", "--dump-grads", "no/such/dir/g")
    check(code == 1 and "cannot create no/such/dir/g" in err, err)
    os.mkfifo("pipe")
    os.mkdir("folder")
    for path, kind in (("pipe", "a special file"), ("folder", "a directory")):
        for flag in ("--trace", "--dump-grads", "--dump-weights", "--dump-batch"):
            code, err = train("", "--data", DATA, "--steps", "1", flag, path)
            check(code == 1 and len(errors_of(err)) == 1 and kind in err, f"{flag} {path}: {code}\n{err}")
    check(stat.S_ISFIFO(os.stat("pipe").st_mode), "a pipe was replaced by a file")
    os.symlink("old.safetensors", "link")
    code, err = train("", "--data", DATA, "--holdout", "0", "--steps", "1", "--dump-grads", "link")
    check(code == 0 and os.path.islink("link") and read_safetensors("old.safetensors"), f"a link was not followed: {err}")
    os.symlink("fresh.safetensors", "dangling")
    code, err = train("", "--data", DATA, "--holdout", "0", "--steps", "1", "--dump-grads", "dangling")
    check(code == 0 and os.path.islink("dangling") and read_safetensors("fresh.safetensors"), f"a link was replaced: {err}")
    os.symlink("loop", "loop")
    code, err = train("", "--data", DATA, "--holdout", "0", "--steps", "1", "--dump-grads", "loop")
    check(code == 1 and "cannot create loop: Too many levels" in err and os.path.islink("loop"), err)


def case_flags():
    for args in (["--foo"], ["x"], ["--steps", "1x"], ["--steps", "-1"], ["--steps"], ["--steps", ""], ["--holdout", "nan"],
                 ["--holdout", "1"], ["--link", "100"], ["--seed", "-1"], ["--seed", "99999999999999999999"],
                 ["--format", "int8"], ["--plan=1"], ["--trace-step", "2"], [], ["--steps", "0", "--trace", "t"],
                 ["--data", DATA, "--shard-bytes", "9"], ["--shape", ""], ["--shapes", ""], ["--shapes", ","], ["--shapes", ":3"]):
        code, err = train("", *args)
        check(code == 2 and len(err.splitlines()) == 1 and len(errors_of(err)) == 1, f"{args}: {code}\n{err}")
    for args in (["--log", "x", "--trace", "x"], ["--log", DATA], ["--dump-grads", "x", "--dump-weights", "x"]):
        code, err = train("", "--data", DATA, *args)
        check(code == 2 and "name the same file" in err and os.path.getsize(DATA) == 4000, f"{args}: {code}\n{err}")
    os.mkdir("folder")
    for args in (["--save", "x", "--save-hf", "x/"], ["--save-hf", "folder", "--save", "./folder"]):
        code, err = train("", "--data", DATA, *args)
        check(code == 2 and "name the same folder" in err and not os.path.exists("x"), f"{args}: {code}\n{err}")
    for args in (["--help"], ["--plan"], ["--memory"]):
        code, err = train("a=2 f=2", *args)
        check(code == 0 and err == "", f"{args}: {code}\n{err}")
    code, err = train("", "--data", DATA, MOE_TEST_DELAY="x")
    check(code == 2 and "MOE_TEST_DELAY=x" in err, err)


def case_data():
    for content, args, pattern in (
            (b"", [], r"0 tokens.*needs 9"), (b"12345678", [], r"8 tokens.*needs 9"), (b"1", [], r"1 tokens.*needs 9"),
            (b"1" * 33, ["--format", "uint16"], r"33 bytes, not a multiple"),
            (b"1" * 40, ["--format", "uint16"], r"token 0 \(byte 0\) is id 12593.*vocabulary has 256"),
            (b"1" * 20, ["--holdout", "0.5", "--eval-every", "1"], None), (b"1" * 20, ["--eval-every", "1"], r"held-out part has 2")):
        with open("small", "wb") as f:
            f.write(content)
        code, err = train("", "--data", "small", "--steps", "1", *args)
        if pattern is None:
            check(code == 0 and "held-out loss 1.0000" in err, err)  # one sample, four sequences
        else:
            check(code == 1 and len(errors_of(err)) == 1 and re.search(pattern, err), f"{args}: {code}\n{err}")
    os.mkfifo("fifo")
    for path, pattern in (("nowhere", "No such file"), (".", "a directory"), ("fifo", "a special file")):
        code, err = train("", "--data", path, "--steps", "1")
        check(code == 1 and len(errors_of(err)) == 1 and pattern in err, f"{path}: {code}\n{err}")


def case_overlap():
    """With paced links and long ops, sends hide behind compute; without the progress thread they do not."""
    layout = "a=1 f=1 mbs=6 seqs=1 seq=64 layers=2 row=1024 spin=2500"
    args = ["--data", DATA, "--holdout", "0", "--steps", "4", "--link", "16MB/s", "--log", "l.jsonl", "--compute-scale", "3"]

    def step_ms(**more):
        code, err = train(layout, *args, **more)
        check(code == 0, err)
        return min(json.loads(line)["step_ms"] for line in open("l.jsonl"))

    for _ in range(3):  # other programs may disturb one try
        overlapped, serial = step_ms(), step_ms(MOE_TEST_SERIAL="1")
        print(f"overlapped {overlapped:.1f} ms, serial {serial:.1f} ms")
        if overlapped < 0.85 * serial:
            return
    check(False, "no overlap")


def case_goodput():
    """A step that is nothing but transfers takes the time its bytes need on a paced link."""
    layout = "a=1 f=2 mbs=4 seqs=1 seq=128 layers=2 row=4096"  # 2 x 0.25 MB out of one port, per transfer
    code, err = train(layout, "--data", DATA, "--holdout", "0", "--steps", "2", "--link", "20MB/s", "--log", "l.jsonl",
                      "--trace", "t.json")
    check(code == 0, err)
    events = [e for e in json.load(open("t.json"))["traceEvents"] if e["ph"] == "X" and e["name"].startswith("SEND DISPATCH l0")]
    events = [e for e in events if e["pid"] == 0]
    begin = min(e["ts"] for e in events)
    end = max(e["ts"] + e["dur"] for e in events)
    ideal = 4 * 128 * 4096 / 20e6 * 1e6  # all of layer 0's rows, through the sender's one port
    print(f"{(end - begin) / 1e3:.1f} ms, ideal {ideal / 1e3:.1f} ms")
    check(0.95 * ideal < end - begin < 1.3 * ideal, "the link is not paced to its rate")


def run_case(cases):
    """The case that the command line names, of a module's globals, in a folder of its own with a file of bytes, DATA."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        cases["DATA"] = os.path.join(folder, "data")
        with open(cases["DATA"], "wb") as f:
            f.write(random.Random(1).randbytes(4000))
        cases["case_" + sys.argv[2]]()
        os.chdir("/")


if __name__ == "__main__":
    run_case(globals())
