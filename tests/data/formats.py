#!/usr/bin/env python3
"""Runs `train` with the fake bundle (tests/runtime) on token files of every format.

usage: formats.py PROGRAM CASE
  order     the batches of whole runs, in several layouts, are those that the format's rules say
  masks     the loss divides by the labels of the global batch that count, in every layout
  hostile   damaged, wrong and vanishing files: one line with both numbers, and nothing is trained
  limits    data larger than the address space the job may use; more shards than files a process may open
"""

import math
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

from order import Plain, blend, order
from sets import CODES, GPT2, LLAMA3, index, indexed, packed, put, shard

PROGRAM = os.path.abspath(sys.argv[1])
LAYOUTS = ["a=1 f=1 mbs=4 seqs=2", "a=3 f=2 mbs=2 seqs=4", "a=2 f=1 replicas=2 mbs=2 seqs=2", "a=2 colocated=1 pa=2 layers=4 mbs=4 seqs=2"]
SEQ, BATCH = 8, 8


def check(condition, text):
    if not condition:
        raise SystemExit("FAILED: " + text[:4000])


def train(layout, *args, before=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MOE_")}
    done = subprocess.run([PROGRAM, "--seed", "5", *args], env=dict(env, FAKE=layout), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60, text=True, preexec_fn=before)
    check("Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr[:4000])
    return done.returncode, done.stderr


def batch_of(layout, step, *args):
    """Token lists of the batch of a step, the last of the run."""
    code, err = train(layout, "--steps", str(step), "--dump-batch", "batch", *args)
    check(code == 0 and re.search(rf"step {step}/{step}  loss 1\.0000", err), f"{layout} {args}: {code}\n{err}")
    with open("batch", "rb") as f:
        data = f.read()
    row = 4 * (SEQ + 1)
    check(len(data) == BATCH * row, f"{layout}: a batch of {len(data)} bytes")
    return [list(int.from_bytes(data[b + 4 * t:b + 4 * t + 4], "little") for t in range(SEQ + 1)) for b in range(0, len(data), row)]


def some_tokens(n, seed=1):
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(n)]


def case_order():
    rng = random.Random(3)
    sequences = [some_tokens(rng.choice((0, 1, 5, 30)), i) for i in range(40)]
    lengths = [len(s) for s in sequences]
    text = [t for s in sequences for t in s]
    for step in (1, 4, 11):  # within an epoch, and over the ends of some
        expected, _ = order(lengths, 0, SEQ, step * BATCH, Plain(5))
        expected = [[text[p] for p in sample] for sample in expected[(step - 1) * BATCH:step * BATCH]]
        for layout in LAYOUTS:
            for code in CODES if layout == LAYOUTS[0] else (8,):
                wide = [[t % 128 for t in s] if code == 2 else s for s in sequences]
                indexed("set", wide, code, modes=bytes(len(wide)) if code == 3 else b"")
                got = batch_of(layout, step, "--data", ("set", "set.bin", "set.idx")[step % 3], "--holdout", "0")
                check(got == [[t % 128 if code == 2 else t for t in s] for s in expected], f"{layout}: step {step}: {got}")
    # the held-out part is left alone: with 0.25, the last 10 of 40 sequences
    expected, _ = order(lengths[:30], 0, SEQ, 2 * BATCH, Plain(5))
    got = batch_of(LAYOUTS[1], 2, "--data", "set", "--holdout", "0.25")
    check(got == [[text[p] for p in sample] for sample in expected[BATCH:2 * BATCH]], f"held out: {got}")

    # several shapes: each goes through the data by itself, in the order for as many samples as it takes in the whole run
    code, err = train("a=2 f=2 mbs=4 seqs=2 turn=2; seq=5 mbs=3 turn=1", "--data", "set", "--holdout", "0", "--steps", "7",
                      "--shapes", "s0:2,s1:1", "--dump-batch", "batch")
    expected, _ = order(lengths, 0, SEQ, 5 * BATCH, Plain(5))
    with open("batch", "rb") as f:
        check(f.read() == packed("i", [text[p] for s in expected[4 * BATCH:5 * BATCH] for p in s]), f"two shapes: {err}")

    # shards: step after step in the order of their names, what is left of one is dropped
    sizes = {"shard_2.bin": 3 * 64 + 1, "shard_0.bin": 64 + 30, "shard_1.bin": 2 * 64}
    for kind in (GPT2, LLAMA3):
        for i, (name, n) in enumerate(sizes.items()):
            shard(name, some_tokens(n, i), kind)
        steps = [("shard_0.bin", 1, 0), ("shard_1.bin", 2, 0)] + [("shard_2.bin", 0, k) for k in range(3)]
        for step in (1, 2, 3, 5, 6):
            _, seed, k = steps[(step - 1) % len(steps)]
            source = some_tokens(sizes[steps[(step - 1) % len(steps)][0]], seed)
            expected = [source[(k * BATCH + g) * SEQ:(k * BATCH + g) * SEQ + SEQ + 1] for g in range(BATCH)]
            for layout in LAYOUTS:
                got = batch_of(layout, step, "--data", "shard_*.bin", "--holdout", "0")
                check(got == expected, f"{layout}: step {step} of shards: {got}")

    # two sets in shares of 1 to 3 (0.25 and 0.75 are exact), each in the order for its part of the samples
    second = [some_tokens(n, 50 + n) for n in (9, 14, 30, 2)]
    indexed("second", second, 8)
    indexed("set", sequences, 8)
    texts = [[t for s in second for t in s], text]

    def mixed(step):
        orders = [order([len(s) for s in documents], 0, SEQ, math.ceil(math.ceil(step * BATCH * share) * 1.005), Plain(5))[0]
                  for documents, share in ((second, 0.25), (sequences, 0.75))]
        return [[texts[k][p] for p in orders[k][i]] for k, i in blend((0.25, 0.75), step * BATCH)[(step - 1) * BATCH:]]

    for step, layout in ((1, LAYOUTS[1]), *((4, layout) for layout in LAYOUTS)):
        got = batch_of(layout, step, "--data", "1:second,3:set", "--holdout", "0")
        check(got == mixed(step), f"{layout}: two sets: {got}")
    code, err = train(LAYOUTS[0], "--data", "1:second,3:set", "--steps", "1", "--holdout", "0.3")
    check(code == 0 and "held-out loss 1.0000" in err and "2 sets" in err, err)

    # without a header: each sample once in an epoch, wherever the files end
    put("plain.bin", packed("H", some_tokens(8 * 8 + 1)))
    for layout in LAYOUTS:
        got = batch_of(layout, 3, "--data", "plain.bin", "--format", "uint16", "--holdout", "0")
        check(sorted(got) == sorted(some_tokens(65)[8 * i:8 * i + 9] for i in range(8)), f"{layout}: {got}")
    put("plain_a", packed("I", some_tokens(8 * 5 + 1, 1)))
    put("plain_b", packed("I", some_tokens(8 * 3 + 8, 2)))
    both = [s[8 * i:8 * i + 9] for s in (some_tokens(41, 1), some_tokens(32, 2)) for i in range((len(s) - 1) // 8)]
    got = batch_of(LAYOUTS[1], 1, "--data", "plain_?", "--format", "uint32", "--holdout", "0")
    check(sorted(got) == sorted(both), f"two files: {got}")
    # a held-out part for each format, with all that a step of evaluation needs
    for args in (("set",), ("shard_*.bin",), ("plain.bin", "--format", "uint16")):
        code, err = train(LAYOUTS[1], "--data", *args, "--steps", "2", "--holdout", "0.3")
        check(code == 0 and err.count("held-out loss 1.0000") == 1, f"{args}: {code}\n{err}")


def case_masks():
    """The fake head adds 1 / tokens for every label that counts: a loss of 1 says that the two numbers agree."""
    text = some_tokens(3000)
    text = [7 if t % 3 == 0 else 9 if t % 5 == 0 else t for t in text]
    indexed("set", [text[i:i + 50] for i in range(0, 3000, 50)])
    negative = [-100 if t == 7 else t for t in text]
    indexed("negative", [negative[i:i + 50] for i in range(0, 3000, 50)])
    shard("shard.bin", [65535 if t == 7 else t for t in text])
    for args in (("set", "--mask-token", "7"), ("set", "--mask-after", "9"), ("set", "--mask-token=7", "--mask-after=9"),
                 ("negative", "--mask-token", "-100"), ("shard.bin", "--mask-token", "65535")):
        for layout in LAYOUTS:
            code, err = train(layout, "--data", *args, "--steps", "3")
            check(code == 0 and len(re.findall(r"step \d/3  loss 1\.0000", err)) == 3, f"{layout} {args}: {err}")
            check(err.count("held-out loss 1.0000") == 1, f"{layout} {args}: {err}")
    indexed("all", [[7] * 500])  # nothing counts: a loss of zero, not a division by it
    code, err = train(LAYOUTS[0], "--data", "all", "--steps", "1", "--mask-token", "7", "--holdout", "0")
    check(code == 0 and "loss 0.0000" in err, err)
    for args in (("--mask-token", "x"), ("--mask-token", "4294967296"), ("--mask-after", ""), ("--mask-after", "--1")):
        code, err = train("", "--data", "set", *args)
        check(code == 2 and len(err.splitlines()) == 1, f"{args}: {err}")


def refuse(pattern, *args, code=1):
    got, err = train("", "--steps", "1", "--dump-weights", "w.out", *args)
    lines = [line for line in err.splitlines() if line.startswith("train: error:")]
    check(got == code and len(lines) == 1 and re.search(pattern, lines[0]), f"{args}: exit code {got}, no /{pattern}/ in\n{err}")
    check(not os.path.exists("w.out") and "step 1" not in err, f"{args}: something was trained\n{err}")


def cut_while_it_trains():
    """An index that is cut off under a run: one line that names it, and no signal."""
    indexed("cut", [some_tokens(20, i) for i in range(3000)])
    env = {k: v for k, v in os.environ.items() if not k.startswith("MOE_")}
    job = subprocess.Popen([PROGRAM, "--data", "cut", "--steps", "100000", "--log", "cut.log"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, env=dict(env, FAKE="a=1 f=1"))
    while job.poll() is None and not (os.path.exists("cut.log") and os.path.getsize("cut.log")):
        time.sleep(0.01)
    os.truncate("cut.idx", 0)
    err = job.communicate(timeout=60)[1]
    errors = [line for line in err.splitlines() if line.startswith("train: error:")]
    check(job.returncode == 1 and len(errors) == 1 and re.search("cannot read byte .* of cut.idx: it had .* bytes", errors[0]), err)
    put("cut.idx", b"")


def case_hostile():
    sequences = [some_tokens(20, i) for i in range(10)]
    lengths = [20] * 10
    flat = [t for s in sequences for t in s]
    good = index(lengths)

    def idx(pattern, data=None, code=4, tokens=flat, **changes):
        indexed("set", sequences, 4)
        put("set.bin", packed(CODES.get(code, "i"), tokens))
        put("set.idx", index(lengths, code, **changes) if data is None else data)
        refuse(pattern, "--data", "set")

    def not_regular(what, path):
        os.mkfifo(path)
        refuse(f"{what} {path} is a special file", "--data", "set")
        os.remove(path)
        os.mkdir(path)
        refuse(f"{what} {path} is a directory", "--data", "set")
        os.rmdir(path)

    idx("0 bytes, but the header of an index has 34", b"")
    idx("33 bytes, but the header of an index has 34", good[:33])
    idx("does not begin with MMIDIDX", magic=b"MMIDIDX\0\1")
    idx("byte 9: version 2 of the index is unknown; known is 1", version=2)
    idx("byte 17: type code 0 of the tokens is unknown; known are 1 to 8", code=0)
    idx("byte 17: type code 9 ", code=9)
    idx("byte 17: type code 6 says float64", code=6)
    idx("byte 17: type code 7 says float32", code=7)
    idx("10 sequences and 11 document boundaries need more than its 241 bytes", good[:-1])
    idx("10 sequences and 11 document boundaries need 242 bytes, but the file has 243", good + b"\0")
    idx("need 242 bytes, but the file has 253", good + b"\0" * 11)
    idx("sequence 3 has mode 1, so it is not text", good + b"\0\0\0\1" + b"\0" * 6)
    for n in (20, 2**31, 2**60, 2**63, 2**64 - 1, (2**64 - 34) // 12 + 1):
        idx("%d sequences and 11 document boundaries need more than its" % n, n_seqs=n)
        idx("10 sequences and %d document boundaries need more than its" % n, n_docs=n)
    idx("11 sequences and 11 document boundaries need more than its", n_seqs=11)
    idx("0 sequences; from 1 to 2147483647 can be trained on", index([], docs=[0]), tokens=[])
    idx("document boundary 0 is 1, but they ascend from 0 to the number of sequences, 10", docs=[1] + list(range(1, 11)))
    idx("document boundary 4 is 2, but", docs=[0, 1, 2, 3, 2, 5, 6, 7, 8, 9, 10])
    idx("document boundary 4 is 11, but", docs=[0, 1, 2, 3, 11, 5, 6, 7, 8, 9, 10])
    idx("document boundary 1 is -1, but", docs=[0, -1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    idx("the last of 3 document boundaries is 9, but there are 10 sequences", docs=[0, 5, 9])
    idx("the last of 0 document boundaries is -1, but there are 10 sequences", docs=[])
    starts = [80 * i for i in range(10)]
    for i, at in ((2, -80), (9, 724), (9, 2**62), (5, 2**63 - 1), (1, 82)):
        idx(f"sequence {i} has 20 tokens of 4 bytes from byte {at} on, but set.bin has 800 bytes",
            offsets=starts[:i] + [at] + starts[i + 1:])
    idx("sequence 0 has -1 tokens", index([-1] + lengths[1:], offsets=starts))
    idx("sequence 9 has 2147483647 tokens of 4 bytes", index(lengths[:9] + [2**31 - 1], offsets=starts))
    idx("sequence 9 has 20 tokens of 4 bytes from byte 720 on, but set.bin has 796 bytes", tokens=flat[:-1])
    idx("sequence 0 has 20 tokens of 4 bytes from byte 0 on, but set.bin has 0 bytes", tokens=[])
    idx("set.bin has 804 bytes, but the sequences of set.idx end at byte 800: they do not belong together", tokens=flat + [1])
    idx("set.bin: token 3 .byte 12. is id 256, but the model's vocabulary has 256", tokens=flat[:3] + [256] + flat[4:])
    idx("set.bin: token 199 .byte 796. is id -1, but the model's vocabulary has 256", tokens=flat[:-1] + [-1])
    idx("token 0 .byte 0. is id -9223372036854775808, but", code=5, tokens=[-2**63] + flat[1:])
    idx("token 1 .byte 2. is id 65535, but", code=8, tokens=[0, 65535] + flat[2:])
    indexed("set", [[1] * 3, [], [2] * 5])
    refuse("set has 8 tokens, 8 of them for training, but one sample needs 9", "--data", "set", "--holdout", "0")
    indexed("set", [[], [], []])
    refuse("set has 0 tokens", "--data", "set")
    indexed("set", [[1] * 30, [1] * 30, [1] * 30])
    refuse("set has 90 tokens, 0 of them for training", "--data", "set", "--holdout", "0.9")
    refuse("--format uint16, but set.idx is an index of its tokens", "--data", "set.bin", "--format", "uint16")
    refuse("--seed 4294967296: the order of set.idx is drawn from a seed below 2.32", "--data", "set", "--seed", "4294967296")
    os.remove("set.idx")
    refuse("set.bin has no header that says what its tokens are: give --format uint16", "--data", "set.bin")
    refuse("cannot open index set.idx: No such file", "--data", "set", "--format", "indexed")
    refuse("cannot open index se..idx: No such file", "--data", "se?", "--format", "indexed")
    refuse("cannot open data file set: No such file", "--data", "set")
    not_regular("index", "set.idx")
    put("set.idx", good)
    os.remove("set.bin")
    refuse("cannot open data file set.bin: No such file", "--data", "set")
    not_regular("data file", "set.bin")
    cut_while_it_trains()
    if os.getuid() != 0:
        put("set.bin", b"")
        os.chmod("set.bin", 0)
        refuse("cannot open data file set.bin: Permission denied", "--data", "set")

    def llmc(pattern, *args, tokens=flat, **changes):
        shard("shard.bin", tokens, **changes)
        refuse(pattern, "--data", "shard.bin", *args)

    llmc("its header says 201 tokens, which makes 1426 bytes, but it has 1424", count=201)
    llmc("its header says 199 tokens, which makes 1422 bytes, but it has 1424", count=199)
    llmc("its header says -1 tokens", count=-1)
    llmc("its header says 0 tokens", count=0)
    llmc("its header says 2147483647 tokens, which makes 8589935612 bytes", kind=LLAMA3, count=2**31 - 1)
    llmc("byte 4: version 2 of llm.c's header 20240520 is unknown; known is 1", version=2)
    llmc("byte 4: version 1 of llm.c's header 20240801 is unknown; known is 7", kind=LLAMA3, version=1)
    llmc("is a file of questions of llm.c", magic=20240522)
    llmc("is a model of llm.c", magic=20240326)
    llmc("shard.bin has 0 tokens, but a step of 4 sequences of 8 needs 33", tokens=[])
    llmc("shard.bin has 32 tokens, but a step of 4 sequences of 8 needs 33", tokens=flat[:32])
    llmc("no file of shard.bin has the 33 tokens of a step of 4 sequences of 8 for training, 20 of 40 being held out",
         "--holdout", "0.5", tokens=flat[:40])
    llmc("--format uint16, but shard.bin has a header of llm.c", "--format", "uint16")
    llmc("shard.bin: token 5 .byte 1034. is id 300", tokens=flat[:5] + [300] + flat[6:])
    put("shard.bin", packed("i", [20240520, 1]))
    refuse("no header that says", "--data", "shard.bin")
    put("shard.bin", packed("H", flat))
    refuse("--format llmc, but shard.bin does not begin with a header of llm.c", "--data", "shard.bin", "--format", "llmc")
    shard("some_0", flat)
    shard("some_1", flat, LLAMA3)
    refuse("some_0 and some_1 are of different formats, llmc of uint16 and llmc of uint32", "--data", "some_*")
    put("some_1", packed("H", flat))
    refuse("some_0 and some_1 are of different formats, llmc of uint16 and bytes", "--data", "some_*")
    shard("some_1", flat[:20])
    refuse("some_1 has 20 tokens, but a step", "--data", "some_*")
    refuse("no data file matches none_.", "--data", "none_*")
    os.mkdir("some_2")
    refuse("data file some_2 is a directory", "--data", "some_*")

    indexed("one", sequences)
    for words in ("1:one,", "1:one,0:one", "1:one,-1:one", "1:one,x:one", "1:one,1:", "0:one,1:one", "1:one,1e400:one", "1:1:one", "1:" * 2000 + "one", "1:one," * 65 + "1:one"):
        refuse("each share above 0", "--data", words)
    shard("shard_0", flat)
    for data, path in (("one", "one.bin"), ("one", "one.idx"), ("shard_?", "shard_0"), ("1:one,1:shard_0", "shard_0")):
        with open(path, "rb") as f:
            before = f.read()
        for option in ("--log", "--trace", "--dump-batch"):
            refuse(f"--data and {option} name the same file, {path}", "--data", data, option, path)
        with open(path, "rb") as f:
            check(f.read() == before, f"{path} was written to")
    refuse("cannot open data file two: No such file", "--data", "0.5:one,0.5:two")

    # files that change while the run goes on
    indexed("live", [some_tokens(200, i) for i in range(40)])
    process = subprocess.Popen([PROGRAM, "--data", "live", "--steps", "200000"], env=dict(os.environ, FAKE="a=2 f=2 spin=100"),
                               stderr=subprocess.PIPE, text=True)
    while "step 1/" not in (line := process.stderr.readline()):
        check(line, "the run ended by itself")
    os.truncate("live.bin", 5000)
    _, err = process.communicate(timeout=30)
    lines = [line for line in err.splitlines() if "error:" in line]
    check(process.returncode == 1 and len(lines) == 1 and "live.bin has 5000 bytes; it had 32000" in lines[0], err)


def case_limits():
    lengths = [2**28] * 40  # 20 GiB of uint16, none of which lies on the disk
    put("huge.idx", index(lengths, 8))
    put("huge.bin", b"")
    os.truncate("huge.bin", 2 * sum(lengths))
    little = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    address = resource.getrlimit(resource.RLIMIT_AS)
    if "thread" in PROGRAM or "address" in PROGRAM:
        little = lambda: resource.setrlimit(resource.RLIMIT_AS, address)  # sanitizers reserve terabytes
    args = ("--data", "huge", "--steps", "3", "--holdout", "0.1")
    layout = "a=2 f=2 seq=4096 mbs=2"  # few samples: their order is held in memory
    code, err = train(layout, *args, before=little)
    check(code == 0 and "10737418240 tokens" in err and "step 3/3  loss 1.0000" in err, f"{code}\n{err}")
    for i in range(300):
        shard(f"many_{i:03}.bin", some_tokens(65, i))
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1000))
    code, err = train("a=2 f=2", "--data", "many_*.bin", "--steps", "2", before=few)
    check(code == 0 and "300 files" in err, err)
    least = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    code, err = train("a=2 f=2", "--data", "many_*.bin", "--steps", "2", before=least)
    check(code == 1 and re.search(r"cannot open data file many_\d+.bin: Too many open files", err), err)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        globals()["case_" + sys.argv[2]]()
        os.chdir("/")
    print("1 passed, 0 failed")


main()
