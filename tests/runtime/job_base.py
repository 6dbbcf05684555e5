"""What tests of jobs of several processes have in common."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import runtime_test as rt
from runtime_test import check, errors_of, sanitizers

TOKEN = "a token that only tests know"
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


def skip(why):
    print("skipped:", why)
    raise SystemExit(SKIPPED)


def is_open_mpi(program):
    return program is not None and "Open MPI" in subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True).stdout


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


def run(cases):
    """The case that the command line names."""
    rt.__dict__["case_" + sys.argv[2]] = cases["case_" + sys.argv[2]]
    rt.run_case(rt.__dict__)
