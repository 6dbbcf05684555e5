"""Jobs of several processes, with the fake bundle: on one host, on made-up hosts of this machine (MOE_TEST_HOST), in
network namespaces, and started as launchers do. Strangers, wrong peers, deaths.

usage: job_test.py PROGRAM CASE
"""

import hashlib
import hmac
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import runtime_test as rt
from runtime_test import check, errors_of, sanitizers

TOKEN = "a token that only tests know"
NAMES = ["GREET", "HELLO", "TABLE", "REFUSE", "LINK", "LINKED", "STATE", "FAIL", "DONE", "BYE"]
SKIPPED = 77  # what ctest takes for "not run"


def free_port():
    """One of those that no program gets by itself."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Job:
    """hosts: name of the host of each process. Each runs one rank, or, with per=N, N of them."""

    def __init__(self, layout, hosts, *args, per=1, port=None, meet=None, more=(), which=None, prefix=lambda i: [], **env):
        self.port = port or free_port()
        self.meet = meet or f"127.0.0.1:{self.port}"
        self.hosts = hosts
        self.processes = []
        for i, host in enumerate(hosts):
            if which is not None and i not in which:
                continue
            place = ["--rank", str(i)] if per == 1 else ["--node", str(i), "--nodes", str(len(hosts))]
            own = rt.environment(layout, MOE_TEST_HOST=str(host), **{"MOE_TOKEN": TOKEN, **env})
            command = [*prefix(i), rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", *args, *place, "--meet", self.meet,
                       *(more[i] if more else ())]
            self.processes.append(subprocess.Popen(command, env={k: v for k, v in own.items() if v != ""},
                                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def end(self, timeout=60):
        """[(exit code, stderr)] of each process."""
        ends = [None] * len(self.processes)

        def wait(i):
            try:
                err = self.processes[i].communicate(timeout=timeout)[1]
            except subprocess.TimeoutExpired:
                self.processes[i].kill()
                err = self.processes[i].communicate()[1] + "\nTIMEOUT"
            ends[i] = (self.processes[i].returncode, err)

        threads = [threading.Thread(target=wait, args=(i,)) for i in range(len(self.processes))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for _, err in ends:
            sanitizers(err)
        return ends

    def well(self, what):
        ends = self.end()
        for i, (code, err) in enumerate(ends):
            check(code == 0 and not errors_of(err), f"{what}: process {i}: exit code {code}\n{err}")
        return ends[0][1]


def trains(layout, hosts, *args, steps=3, **more):
    err = Job(layout, hosts, "--steps", str(steps), *args, **more).well(f"{layout} on {hosts}")
    check(re.search(rf"step {steps}/{steps}.*  loss 1\.0000", err), f"{layout} on {hosts}: no loss of 1\n{err}")


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


def ends_with(job, *patterns, code=1, seconds=None):
    """Each process ends with that code and one line of error that has its pattern."""
    begin = time.monotonic()
    for i, ((got, err), pattern) in enumerate(zip(job.end(), patterns)):
        lines = errors_of(err)
        if pattern is None:
            check(got != 0 and not lines, f"process {i}: {got}, no line expected\n{err}")
            continue
        check(got == code and len(lines) == 1, f"process {i}: exit code {got}, lines {lines}\n{err}")
        check(re.search(pattern, lines[0]), f"process {i}: no /{pattern}/ in {lines[0]}")
    check(seconds is None or time.monotonic() - begin < seconds, f"took {time.monotonic() - begin:.1f} s")


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


# ---- the protocol, spoken by Python ----


def frame(name, body):
    return b"moec" + struct.pack("<II", NAMES.index(name), len(body)) + body


def read_exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read_frame(s):
    head = read_exactly(s, 12)
    check(head[:4] == b"moec", f"no frame: {head}")
    kind, size = struct.unpack("<II", head[4:])
    return NAMES[kind], read_exactly(s, size)


def proved(name, nonce, rest, token=TOKEN):
    key = hashlib.sha256(token.encode()).digest()
    return hmac.new(key, bytes([NAMES.index(name)]) + nonce + rest, "sha256").digest() + rest


def hello(nonce, version=1, ranks=2, processes=2, process=1, first=1, n=1, bundle=0, settings=0, host=9, ports=(1,), token=TOKEN):
    rest = bytes(range(32)) + struct.pack("<6I4Q", version, ranks, processes, process, first, n, bundle, settings, host, 0)
    return frame("HELLO", proved("HELLO", nonce, rest + b"".join(struct.pack("<H", p) for p in ports), token))


def knock(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=10)
    name, nonce = read_frame(s)
    check(name == "GREET" and len(nonce) == 32, f"greeted by {name}")
    return s, nonce


def listening(port):
    limit = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            check(time.monotonic() < limit, "nobody listens")
            time.sleep(0.02)


def is_closed(s):
    try:
        while True:
            if not s.recv(4096):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def settings_of(layout):
    """What a real process says of its flags: overheard by one that listens in its stead."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        job = Job(layout, "ab", "--steps", "3", "--join-timeout", "2", port=door.getsockname()[1], which=[1])
        s, _ = door.accept()
        s.sendall(frame("GREET", bytes(32)))
        name, body = read_frame(s)
        check(name == "HELLO" and body[:32] == proved("HELLO", bytes(32), body[32:])[:32], "its proof is wrong")
        s.close()
    job.end()
    return struct.unpack("<Q", body[96:104])[0]


def garbage(rng):
    """First words of those who do not belong."""
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield bytes(12)
    yield b"\xff" * 5000
    yield b"moe"
    yield b"moec"
    yield frame("HELLO", b"")
    yield frame("HELLO", bytes(122))
    yield frame("HELLO", bytes(121))
    yield frame("HELLO", bytes(4000))
    yield b"moec" + struct.pack("<II", 1, 0xFFFFFFFF)
    yield b"moec" + struct.pack("<II", 0xFFFFFFFF, 122) + bytes(122)
    yield frame("HELLO", bytes(122))[:60]
    for name in NAMES:
        yield frame(name, b"")
        yield frame(name, bytes(64))
    yield hello(bytes(32))  # a right answer to another nonce
    for _ in range(40):
        yield rng.randbytes(rng.randrange(1, 300))
    for _ in range(40):
        real = bytearray(hello(rng.randbytes(32)))
        real[rng.randrange(len(real))] ^= 1 << rng.randrange(8)
        yield bytes(real)


def case_strangers():
    """Whatever comes to the port while ranks meet: the job begins when its own are there, and trains."""
    layout = "a=1 f=1"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    rng = random.Random(7)
    job = Job(layout, "ab", "--steps", "3", which=[0])
    listening(job.port)
    held = []
    for words in garbage(rng):
        s, _ = knock(job.port)
        try:
            s.sendall(words)
        except ConnectionError:
            pass
        held.append(s)
    # an answer that was right once
    s, nonce = knock(job.port)
    recorded = hello(nonce, version=2)
    s.sendall(recorded)
    check(read_frame(s) == ("REFUSE", b"it speaks version 2 of the protocol, this one 1"), "version 2 was not refused")
    s, _ = knock(job.port)
    s.sendall(recorded)
    check(read_frame(s)[1] == b"the job's token is another one here" and is_closed(s), "a repeated answer was taken")
    for wrong, why in ((dict(process=0, first=0), "not what this job gives it"), (dict(process=2, first=2), "not what"),
                       (dict(first=0), "not what"), (dict(n=2), "not what"), (dict(n=0xFFFFFFFF), "not what"), (dict(ports=(1, 2)), "not what"),
                       (dict(ports=()), "not what"), (dict(process=0xFFFFFFFF), "not what"), (dict(ranks=3), "its job has"), (dict(settings=1), "its flags")):
        s, nonce = knock(job.port)
        s.sendall(hello(nonce, **wrong))
        check(why in read_frame(s)[1].decode(), f"{wrong} was not refused")
    begin = time.monotonic()
    count = int(os.environ.get("MOE_CONNECTIONS", "10000"))
    for i in range(count):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", job.port))
        held.append(s)
        if len(held) > 800:
            held.pop(0).close()
        if i % 100 == 0:
            time.sleep(0.002)  # the two cores are the server's too
    print(f"{count} connections in {time.monotonic() - begin:.1f} s")
    last = Job(layout, "ab", "--steps", "3", port=job.port, which=[1])
    err = job.well("among strangers")
    last.well("among strangers")
    check(re.search(r"train: \d+ connections of others were turned away while ranks met", err), err)
    check(re.search(r"step 3/3  loss 1\.0000", err), err)


def case_traitors():
    """Processes that know the token, are let in, and then say what they may not: one line, and the job ends at once."""
    layout = "a=1 f=1"
    settings = settings_of(layout)
    state = lambda rank, phase=2: struct.pack("<5I3Q", rank, phase, 0, 0, 0, 1, 0, 1)
    for words, why in ((b"garbage and more", "carried no frame of this job"), (frame("HELLO", bytes(122)), "no frame of this job"),
                       (b"moec" + struct.pack("<II", 6, 1 << 30), "no frame of this job"), (frame("STATE", state(0)), "ranks that are not its own"),
                       (frame("STATE", state(7)), "not its own"), (frame("STATE", state(1, 99)), "not its own"), (frame("STATE", state(1)[:-1]), "not its own"),
                       (frame("FAIL", struct.pack("<I", 0) + b"x"), "process that does not exist"), (frame("FAIL", struct.pack("<I", 1) + b"a\x1b[2Jb"), r"a\?\[2Jb"),
                       (frame("BYE", b""), "no frame of this job"), (b"", "its connection was closed")):
        job = Job(layout, "ab", "--steps", "3", which=[0])
        listening(job.port)
        s, nonce = knock(job.port)
        with socket.socket() as link:
            link.bind(("127.0.0.1", 0))
            s.sendall(hello(nonce, settings=settings, ports=(link.getsockname()[1],)))
            name, table = read_frame(s)
            check(name == "TABLE" and table[:32] == proved("TABLE", bytes(range(32)), table[32:])[:32], f"{name}: not its table")
            s.sendall(words)
            s.close()
            ends_with(job, why, seconds=8)


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


# ---- launchers ----


def started(layout, variables, n, steps=3):
    """n processes with the variables that a launcher gives each: variables(i)."""
    processes = []
    for i in range(n):
        env = rt.environment(layout, MOE_TOKEN=TOKEN, **{k: str(v) for k, v in variables(i).items()})
        processes.append(subprocess.Popen([rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", str(steps)], env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ends = [(p.communicate(timeout=60)[1], p.returncode) for p in processes]
    sanitizers(ends[0][0])
    check(all(code == 0 for _, code in ends) and re.search(r"step 3/3  loss 1\.0000", ends[0][0]), f"{variables(0)}: {ends}")


def case_variables():
    """Exactly what each launcher sets."""
    port = free_port
    p = port()
    started("a=2 f=2", lambda i: dict(RANK=i, WORLD_SIZE=4, LOCAL_RANK=i % 2, LOCAL_WORLD_SIZE=2, GROUP_RANK=i // 2, ROLE_RANK=i, ROLE_WORLD_SIZE=4,
                                      GROUP_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=p, TORCHELASTIC_RUN_ID="none",
                                      TORCHELASTIC_USE_AGENT_STORE="False", TORCHELASTIC_RESTART_COUNT=0), 4)
    with socket.socket() as agent:  # torchrun's own store holds the port
        agent.bind(("127.0.0.1", 0))
        agent.listen()
        taken = agent.getsockname()[1]
        started("a=2 f=2", lambda i: dict(RANK=i, WORLD_SIZE=4, LOCAL_RANK=i, LOCAL_WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=taken,
                                          TORCHELASTIC_USE_AGENT_STORE="True"), 4)
    started("a=2 f=2", lambda i: dict(SLURM_PROCID=i, SLURM_LOCALID=i, SLURM_NODEID=0, SLURM_STEP_NUM_TASKS=4, SLURM_NTASKS=4, SLURM_NPROCS=4, SLURM_STEP_ID=0,
                                      SLURM_STEP_NODELIST="localhost", SLURM_JOB_NODELIST="localhost", SLURM_STEP_TASKS_PER_NODE="4",
                                      SLURM_JOB_ID=os.getpid(), SLURM_GTIDS="0,1,2,3", PMIX_RANK=i), 4)
    started("a=2 f=2", lambda i: dict(PMI_RANK=i, PMI_SIZE=4, MPI_LOCALRANKID=i, MPI_LOCALNRANKS=4, PMI_FD=9), 4)
    started("a=2 f=2", lambda i: dict(PMIX_RANK=i, PMIX_NAMESPACE="x", MASTER_ADDR="127.0.0.1", MASTER_PORT=p), 4)
    started("a=2 f=2", lambda i: dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=p, PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=p, WORLD_SIZE=4, RANK=i,
                                      PET_NODE_RANK=i, PET_NNODES=2, PET_NPROC_PER_NODE=2, PYTHONUNBUFFERED=1), 2)
    started("a=2 f=2", lambda i: dict(PET_MASTER_ADDR="localhost", PET_MASTER_PORT=p, PET_NODE_RANK=i, PET_NNODES=2, PET_NPROC_PER_NODE="auto",
                                      JOB_COMPLETION_INDEX=i), 2)
    started("a=2 f=2", lambda i: dict(JOB_COMPLETION_INDEX=i, MOE_NODES=2, MOE_ADDRESS=f"127.0.0.1:{p}"), 2)
    started("a=2 f=2", lambda i: dict(COORDINATOR_ADDRESS="127.0.0.1", COORDINATOR_PORT=p, NUM_PROCESSES=4, PROCESS_ID=i), 4)
    started("a=2 f=2", lambda i: dict(SLURM_PROCID=0, SLURM_NTASKS=1, SLURM_JOB_ID=1), 1)  # a batch script: alone


def skip(why):
    print("skipped:", why)
    raise SystemExit(SKIPPED)


def launched(*command, layout="a=2 f=2", **more):
    env = rt.environment(layout, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)
    done = subprocess.run([*command, rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", "3"], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120)
    check(done.returncode == 0 and re.search(r"step 3/3  loss 1\.0000", done.stderr), f"{command}: {done.returncode}\n{done.stderr}")


def is_open_mpi(program):
    return program is not None and "Open MPI" in subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True).stdout


def case_mpirun():
    mpirun = next((p for p in map(shutil.which, ("mpirun.openmpi", "mpirun")) if is_open_mpi(p)), None)
    if mpirun is None:
        skip("Open MPI is not installed")
    launched(mpirun, "--oversubscribe", "-n", "4")
    launched(mpirun, "--oversubscribe", "-n", "1")  # one process runs all
    launched(mpirun, "--oversubscribe", "-n", "4", "-x", f"MASTER_PORT={free_port()}", "-x", "MASTER_ADDR=127.0.0.1")
    done = subprocess.run([mpirun, "--oversubscribe", "-n", "3", rt.PROGRAM, "--data", rt.DATA, "--steps", "1"],
                          env=rt.environment("a=2 f=2", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    check(done.returncode != 0 and "OMPI_COMM_WORLD_SIZE=3, but the plan has 4 ranks" in done.stderr, done.stderr)


def case_torchrun():
    torchrun = shutil.which("torchrun")
    if torchrun is None:
        skip("torchrun is not installed")
    launched(torchrun, "--no-python", "--nproc-per-node", "4")
    launched(torchrun, "--no-python", "--nproc-per-node", "1")
    launched(torchrun, "--no-python", "--nproc-per-node", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    port, env = free_port(), rt.environment("a=2 f=2", MOE_TOKEN=TOKEN)  # two agents, a process each
    agents = [subprocess.Popen([torchrun, "--no-python", "--nnodes", "2", "--node-rank", str(i), "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
                                "--master-port", str(port), rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", "3"], env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
    ends = [(a.communicate(timeout=100)[1], a.returncode) for a in agents]
    check(all(code == 0 for _, code in ends) and re.search(r"step 3/3  loss 1\.0000", ends[0][0]), str(ends))


def case_hydra():
    hydra = shutil.which("mpiexec.hydra")
    if hydra is None:
        skip("Hydra is not installed")
    launched(hydra, "-n", "4")
    launched(hydra, "-n", "4", "sh", "-c", 'nice "$0" "$@"; exit $?')  # another parent for each


class Slurm:
    """A Slurm of one node, of this test alone."""

    def __enter__(self):
        if os.getuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "sbatch"))):
            skip("Slurm is not installed, or not as root")
        name, folder = socket.gethostname().split(".")[0], os.path.abspath("slurm")
        os.makedirs(folder + "/state")
        os.makedirs(folder + "/spool")
        with open(folder + "/slurm.conf", "w") as f:
            f.write(f"""ClusterName=moec
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={name} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        self.env = dict(SLURM_CONF=folder + "/slurm.conf")
        log = open(folder + "/log", "w")
        run = lambda *a: subprocess.Popen(a, env={**os.environ, **self.env}, stdout=log, stderr=log)
        self.daemons = [run("slurmctld", "-D"), run("slurmd", "-D", "-N", name)]
        limit = time.monotonic() + 30
        while subprocess.run(["srun", "-n", "1", "true"], env={**os.environ, **self.env}, stdout=log, stderr=log, timeout=60).returncode != 0:
            if time.monotonic() > limit:
                self.__exit__()
                skip("no Slurm of its own comes up: " + open(folder + "/log").read()[-400:])
            time.sleep(0.3)
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def case_slurm():
    with Slurm() as slurm:
        launched("srun", "-n", "4", **slurm.env)
        launched("srun", "--mpi=pmi2", "-n", "4", **slurm.env)
        launched("srun", "-n", "1", **slurm.env)
        with open("batch.sh", "w") as f:
            train = f"{rt.PROGRAM} --data {rt.DATA} --holdout 0 --steps 3"
            f.write(f"#!/bin/sh\n{train}\necho code $?\n{train} --nodes 1 && srun {train} && mpirun --oversubscribe -n 4 {train} && echo all\n")
        env = rt.environment("a=2 f=2", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **slurm.env)
        subprocess.run(["sbatch", "-W", "-n", "4", "-o", "batch.out", "batch.sh"], env=env, timeout=120, stdout=subprocess.DEVNULL)
        out = open("batch.out").read()
        check("SLURM_PROCID=0, SLURM_NTASKS=4 without SLURM_STEP_NUM_TASKS; srun sets both" in out and "code 2" in out, out)
        check(out.count("step 3/3  loss 1.0000") == 3 and out.rstrip().endswith("all"), out)


# ---- network namespaces ----


class Hosts:
    """Two network namespaces with a cable between them."""

    def __enter__(self):
        self.names = [f"moec{os.getpid()}{x}" for x in "ab"]
        run = lambda *a: subprocess.run(a, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.run = run
        a, b = self.names
        steps = [["ip", "netns", "add", a], ["ip", "netns", "add", b],
                 ["ip", "link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b]]
        for i, name in enumerate(self.names):
            steps += [["ip", "-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "cable"], ["ip", "-n", name, "link", "set", "cable", "up"],
                      ["ip", "-n", name, "link", "set", "lo", "up"]]
        for step in steps:
            done = run(*step) if shutil.which("ip") else None
            if done is None or done.returncode != 0:
                self.__exit__()
                skip(f"{' '.join(step)}: {done.stdout.strip() if done else 'no such program'}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            self.run("ip", "netns", "del", name)

    def prefix(self, i, n):
        return ["ip", "netns", "exec", self.names[i * 2 // n]]


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
    rt.__dict__["case_" + sys.argv[2]] = globals()["case_" + sys.argv[2]]
    rt.run_case(rt.__dict__)
