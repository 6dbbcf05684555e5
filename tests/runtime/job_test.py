"""Jobs of several processes, with the fake bundle: on one host, on made-up hosts of this machine (MOE_TEST_HOST), in
network namespaces; what is refused, and deaths.

usage: job_test.py PROGRAM CASE
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import runtime_test as rt
from job_base import Hosts, Job, TOKEN, ends_with, free_port, is_open_mpi, run, trains
from runtime_test import check, errors_of


def n_ranks(layout):
    got = dict(re.findall(r"(\w+)=(\d+)", layout.split(";")[0]))
    of = lambda key: int(got.get(key, 1))
    colocated = of("colocated") and "colocated" in got
    return of("replicas") * (of("a") * of("pa") + (0 if colocated else of("f") * of("pf")))


def case_hosts():
    """Every message is checked by the kernels that take it, so a run to the end says that all of them arrived."""
    layouts = ["a=2 f=2", "a=1 f=4 rpn=2 relay=1", "a=2 f=2 replicas=2", "a=2 colocated=1 pa=2 layers=4 join=1 ways=2 mbs=4",
               "a=2 f=3 chunks=4 seq=7 seqs=3"]
    if "thread" in rt.PROGRAM or "address" in rt.PROGRAM:
        layouts = layouts[:2]
    for layout in layouts:
        n = n_ranks(layout)
        trains(layout, ["x"] * n)
        trains(layout, range(n))
        trains(layout, [i * 2 // n for i in range(n)])
        trains(layout, [i % 2 for i in range(n)])
        if n % 2 == 0:
            trains(layout, range(2), per=n // 2)
    trains("a=2 f=2", "abba", MOE_TEST_SYNC_SEND="1")
    trains("a=2 f=2", "abab", MOE_POISON="1", MOE_TEST_DELAY="300,2")
    trains("a=2 f=2", "abab", MOE_TEST_SERIAL="1")
    trains("a=2 f=2", "aaaa", "--link", "100MB/s", "--compute-scale", "2")
    trains(rt.SHAPES[1], "xyxyzzyx", "--shapes", ",".join(f"s{i}:{n}" for i, n in enumerate(rt.turns_of(rt.SHAPES[1]))), steps=8)


def case_bits():
    """Files of a job on two hosts are those of one process; a checkpoint goes on in either."""
    layout = "a=2 f=2 layers=3 mbs=3 row=64"
    files = ["--dump-grads", "g", "--dump-weights", "w", "--dump-batch", "b", "--log", "l", "--save", "ck", "--save-every", "2"]

    def at(folder):
        return [f"{folder}/{a}" if not a.startswith("--") and not a.isdigit() else a for a in files]

    for folder in "abcd":
        os.mkdir(folder)
    check(rt.train(layout, "--data", rt.DATA, "--holdout", "0", "--steps", "4", *at("a"))[0] == 0, "bare")
    trains(layout, "xxyy", *at("b"), steps=4)
    trains(layout, "xx", *at("c"), steps=4, per=2)
    trains(layout, "xxxx", *at("d"), "--trace", "d/t", "--dump-logits", "d/x", steps=4)
    names = ["g", "w", "b"] + [f"ck/{step}/{name}" for step in os.listdir("a/ck") for name in os.listdir(f"a/ck/{step}")]
    check(len(names) > 8, str(names))
    for folder in "bcd":
        for name in names:
            same = open(f"a/{name}", "rb").read() == open(f"{folder}/{name}", "rb").read()
            check(same, f"{folder}/{name} differs from that of one process")
        left = [f for _, _, fs in os.walk(folder) for f in fs if ".tmp" in f]
        check(not left, f"left behind: {left}")
    trains("a=2 f=2 layers=3 mbs=3 row=64 done=4", "xyxy", "--resume", "b/ck", steps=6)


def case_refused():
    layout = "a=2 f=2"
    soon = ("--join-timeout", "3", "--steps", "2")
    # who is missing is named; the others hear that they were not met
    ends_with(Job(layout, "abcd", *soon, which=[0, 1, 3]), r"after 3 s at 127.0.0.1:\d+, 1 of 4 processes are missing: rank 2$",
              *[r"rank 0 was not met at 127.0.0.1:\d+ within 3 s: the connection was closed"] * 2, seconds=20)
    ends_with(Job(layout, "ab", *soon, per=2, which=[0]), r"1 of 2 processes are missing: ranks 2-3$")
    ends_with(Job(layout, "abcd", *soon, which=[2]), r"rank 0 was not met at .* within 3 s: Connection refused")
    # another bundle, plan size, token, options; the same rank twice
    job = Job(layout, "abcd", *soon, which=[0, 1, 2])
    other = Job("a=2 f=2 hash=5", "abcd", *soon, port=job.port, which=[3])
    ends_with(other, r"rank 0 at 127.0.0.1:\d+ refuses this process: it is of another bundle, 0+5, this one is 0+$")
    ends_with(job, r"missing: rank 3; refused rank 3 from 127.0.0.1:\d+: it is of another bundle", r"not met", r"not met")
    job = Job(layout, "abcd", *soon, which=[0, 1, 2])
    other = Job("a=2 f=3", "abcde", *soon, port=job.port, which=[4])
    ends_with(other, r"refuses this process: its job has 5 processes with 5 ranks, this one 4 with 4")
    other = Job(layout, "ab", *soon, per=2, port=job.port, which=[1])
    ends_with(other, r"refuses this process: its job has 2 processes with 4 ranks, this one 4 with 4")
    other = Job(layout, "abcd", *soon, port=job.port, which=[3], MOE_TOKEN=TOKEN + "x")
    ends_with(other, r"refuses this process: the job's token is another one here")
    other = Job(layout, "abcd", "--join-timeout", "3", "--steps", "5", port=job.port, which=[3])
    ends_with(other, r"refuses this process: its flags or the checkpoint .* are others than those of rank 0")
    time.sleep(0.5)
    other = Job(layout, "abcd", *soon, port=job.port, which=[1])
    ends_with(other, r"refuses this process: rank 1 came already")
    third = Job(layout, "abcd", *soon, port=job.port, which=[3])  # after all that the job is whole
    check([code for code, _ in job.end() + third.end()] == [0, 0, 0, 0], "the job was disturbed")
    # a process that came and died may come again
    job = Job(layout, "abcd", "--steps", "2", which=[0, 1, 2])
    time.sleep(0.5)
    job.processes[1].kill()
    time.sleep(0.3)
    again = Job(layout, "abcd", "--steps", "2", port=job.port, which=[1, 3])
    check([code for code, _ in job.end() + again.end()] == [0, -9, 0, 0, 0], "a process that came again was not taken")
    # the port is another's
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        ends_with(Job(layout, "abcd", *soon, port=port, which=[0]), r"cannot listen at 127.0.0.1:\d+: Address already in use")
        ends_with(Job(layout, "abcd", *soon, port=port, which=[1]), r"not met at .* what answers there is no training job")
    # places that are none
    ends_with(Job(layout, "abcd", *soon, meet="192.0.2.1:20000", which=[0]), r"cannot listen at 192.0.2.1:20000: .*host of rank 0")
    ends_with(Job(layout, "abcd", *soon, meet="no.such.host.invalid:20000", which=[0, 1]), r"cannot listen at no.such.host",
              r"not met at no.such.host.invalid:20000 within 3 s: ")
    # tokens
    ends_with(Job(layout, "abcd", *soon, meet="0.0.0.0:20000", which=[0], MOE_TOKEN=""), r"need a token that no one else has")
    ends_with(Job(layout, "abcd", *soon, which=[0], MOE_TOKEN="short"), r"token has 5 bytes, at least 16")
    ends_with(Job(layout, "abcd", *soon, "--token-file", "none", which=[0]), r"cannot read the job's token from none: No such file")
    err = Job(layout, "abcd", "--steps", "2", MOE_TOKEN="").well("no token on one host")
    check(re.search(r"train: no token: ranks meet at 127.0.0.1:\d+, which only this machine reaches; its users are trusted", err), err)
    # variables that do not fit are told before anything else
    for args in (("--rank", "4"), ("--node", "0"), ("--node", "0", "--nodes", "3"), ("--rank", "0"), ("--world-size", "4")):
        code, err = rt.train(layout, "--data", rt.DATA, "--steps", "1", *args)
        check(code == 2 and len(errors_of(err)) == 1, f"{args}: {code} {err}")
    # what several hosts cannot do
    for args, what in ((("--trace", "t"), "--trace"), (("--link", "1GB/s"), "--link"), (("--dump-logits", "x"), "--dump-logits")):
        ends_with(Job(layout, "ab", *soon, *args, per=2), *[rf"{what} needs all ranks on one host"] * 2)
    ends_with(Job(layout, "aaaa", *soon, "--save-hf", "x", which=[0]), "--save-hf is for a program that runs all ranks itself", code=2)


def case_deaths():
    """Whoever is killed is named once on every host, soon, and nobody is left."""
    layout = "a=2 f=2 spin=100"
    long = ("--steps", "1000000")
    hosts = "xxyy"
    for what in ("rank", "process"):
        for victim in range(4):
            job = Job(layout, hosts, *long)
            ranks = [rt.wait_for_ranks(p, 1)[0] for p in job.processes]
            time.sleep(random.random() * 0.5 if victim else 0.5)
            os.kill(ranks[victim] if what == "rank" else job.processes[victim].pid, signal.SIGKILL)
            begin = time.monotonic()
            ends = job.end(timeout=20)
            took = time.monotonic() - begin
            check(took < 10, f"took {took:.1f} s to end")
            rt.wait_gone(ranks, 2)
            pattern = rf"rank {victim} \(.*was killed by signal 9" if what == "rank" else rf"the process of rank {victim} on 127.0.0.1 is gone in step \d+"
            told = {host: [l for (_, err), h in zip(ends, hosts) if h == host for l in errors_of(err)] for host in "xy"}
            for host, lines in told.items():
                check(len(lines) == 1 and re.search(pattern, lines[0]), f"{what} {victim}, host {host}: {lines}")
            codes = [code for code, _ in ends]
            check(codes == [-9 if what == "process" and i == victim else 1 for i in range(4)], str(codes))
    for sig in (signal.SIGTERM, signal.SIGINT):
        job = Job(layout, hosts, *long)
        rt.wait_for_ranks(job.processes[2], 1)
        job.processes[2].send_signal(sig)
        ends = job.end(timeout=20)
        check([code for code, _ in ends] == [1, 1, 128 + sig, 1], str(ends))
        check(errors_of(ends[0][1]) and rf"the process of rank 2 got signal {int(sig)}" in ends[0][1], ends[0][1])
    # errors of kernels, an early end
    ends = Job("a=2 f=2 fail=3", "xxyy", "--steps", "5").end()
    check(any(re.search(r"rank [23] \(FFN group F0.*in step 3, running FFN_FWD layer 0 micro-batch 0: more rows", e) for _, e in ends[:1]), str(ends))
    ends = Job("a=2 f=1 exit=2", "xyz", "--steps", "5").end()
    check([c for c, _ in ends] == [1, 1, 1] and all("rank 2 (FFN group F0, member 0) ended with exit code 0" in e for _, e in ends), str(ends))
    # silence
    job = Job("a=2 f=1 spin=100", "xyz", *long, "--timeout", "2")
    ranks = [rt.wait_for_ranks(p, 1)[0] for p in job.processes]
    time.sleep(0.3)
    os.kill(ranks[1], signal.SIGSTOP)
    ends = job.end(timeout=30)
    check([c for c, _ in ends] == [1, 1, 1], str(ends))
    check("no rank did anything for 2 s; the silent one seems to be rank" in ends[0][1], ends[0][1])
    rt.wait_gone(ranks, 2)


def case_namespaces():
    with Hosts() as hosts:
        meet = lambda: f"10.77.0.1:{free_port()}"
        for n, per in ((4, 1), (2, 2)):
            trains("a=2 f=2", [""] * n, per=per, meet=meet(), prefix=lambda i: hosts.prefix(i, n))
        # the cable is cut: each side names the other
        job = Job("a=2 f=2 spin=100", ["", ""], "--steps", "1000000", per=2, meet=meet(), prefix=lambda i: hosts.prefix(i, 2))
        rt.wait_for_ranks(job.processes[1], 2)
        time.sleep(1)
        hosts.run("ip", "-n", hosts.names[1], "link", "set", "cable", "down")
        ends_with(job, r"the process of ranks 2-3 on 10.77.0.2 is gone in step \d+", r"the process of ranks 0-1 on 10.77.0.1 is gone in step \d+",
                  seconds=10)


def case_model():
    """With a real bundle (tests/e2e/jobs.sh): two attention and two FFN ranks, which a cable parts in every way."""
    def losses(name):
        return [(r["step"], r.get("loss"), r.get("eval_loss"), r.get("grad_norm")) for r in map(json.loads, open(name + ".log"))]

    def files(name):
        return ["--steps", "4", "--log", name + ".log", "--dump-weights", name + ".weights", "--dump-grads", name + ".grads"]

    def same(name):
        check(losses(name) == losses("bare") and len(losses(name)) == 4, f"{name}: losses {losses(name)}, alone {losses('bare')}")
        for what in ("weights", "grads"):
            check(open(f"{name}.{what}", "rb").read() == open(f"bare.{what}", "rb").read(), f"{name}: other {what}")

    data = ["--data", rt.DATA, "--holdout", "0"]
    check(rt.train("", *data, *files("bare"))[0] == 0, "alone")
    Job("", "xyyx", *files("made_up")).well("made-up hosts")
    same("made_up")
    if is_open_mpi(shutil.which("mpirun")):
        env = rt.environment("", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = subprocess.run(["mpirun", "--oversubscribe", "-n", "4", rt.PROGRAM, *data, *files("mpirun")], env=env, timeout=120)
        check(done.returncode == 0, "mpirun")
        same("mpirun")
    with Hosts() as hosts:
        for name, n, side in (("across", 4, lambda i: i // 2), ("along", 4, lambda i: i % 2), ("nodes", 2, lambda i: i)):
            Job("", [""] * n, *files(name), per=4 // n, meet=f"10.77.0.1:{free_port()}",
                prefix=lambda i: ["ip", "netns", "exec", hosts.names[side(i)]]).well(name)
            same(name)


if __name__ == "__main__":
    run(globals())
