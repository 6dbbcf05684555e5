"""Who comes to the port of a job, and what it says: strangers, and traitors that know the token. The protocol is spoken
here by Python, with its own HMAC.

usage: job_strangers.py PROGRAM strangers|traitors
"""

import hashlib
import hmac
import os
import random
import re
import resource
import socket
import struct
import time

from job_base import Job, TOKEN, ends_with, run
from runtime_test import check

NAMES = ["GREET", "HELLO", "TABLE", "REFUSE", "LINK", "LINKED", "STATE", "FAIL", "DONE", "BYE"]


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
        if i == count * 9 // 10:  # while they come
            last = Job(layout, "ab", "--steps", "3", port=job.port, which=[1])
    print(f"{count} connections in {time.monotonic() - begin:.1f} s")
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


if __name__ == "__main__":
    run(globals())
