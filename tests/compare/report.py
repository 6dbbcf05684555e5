#!/usr/bin/env python3
"""moec report: the page of a run. report.py MOEC SPECS WORK"""
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import time

import command_line
from command_line import check, check_page

MOEC, SPECS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
os.makedirs(sys.argv[3], exist_ok=True)
os.chdir(sys.argv[3])


def run(*words):
    done = subprocess.run([MOEC, "report", *words], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def write(name, text):
    with open(name, "w", encoding="utf-8") as out:
        out.write(text)
    return name


def row(i, **more):
    return json.dumps({"step": i, "loss": 5 - i / 40, "balance_loss": 0.04, "grad_norm": 1 + 1 / i, "lr": 1e-3, "tokens": 10,
                       "tokens_per_s": 5e4, "step_ms": 3.0, "dropped": 0, **more}) + "\n"


def page_of(*words):
    """The page that is written, which must be well-formed, whole and finite: every coordinate a number on the paper."""
    if os.path.exists("page.html"):
        os.remove("page.html")
    code, _, err = run(*words, "-o", "page.html")
    check(code == 0, f"report {words}: {code} {err}")
    with open("page.html", encoding="utf-8") as page:
        text = page.read()
    check_page(text, str(words))
    for box, inner in re.findall(r'<svg[^>]*viewBox="0 0 ([\d ]+)"[^>]*>(.*?)</svg>', text, re.S):
        wide, tall = map(float, box.split())
        numbers = [(float(x), float(y)) for d in re.findall(r' d="([^"]*)"', inner) for x, y in re.findall(r"[ML](\S+?) ([\d.-]+)", d)]
        check(all(-1 <= x <= wide + 1 and -1 <= y <= tall + 1 for x, y in numbers), f"{words}: a line leaves its chart")
        check(not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', inner), f"{words}: a coordinate is no number")
    return text, err


def lines_of(text, title):
    """The points of a chart's first line, as the values that the axis says."""
    svg = re.search(rf'aria-label="{title}">(.*?)</svg>', text, re.S).group(1)
    return [[tuple(map(float, p)) for p in re.findall(r"[ML]([\d.]+) ([\d.]+)", d)] for d in
            re.findall(r'stroke-width="1.6" d="([^"]*)"', svg)]


def logs():
    text, _ = page_of(write("run.jsonl", "".join(row(i) for i in range(1, 41)) + '{"step":40,"eval_loss":4.25}\n'))
    check("<b>4.0000</b> at step 40" in text and "<b>4.2500</b> at step 40" in text and "50.0K tokens/s" in text, "facts of a run")
    (points,) = lines_of(text, "Loss")[:1]
    check(len(points) == 40 and all(abs(p[0] - q[0] - (points[0][0] - points[1][0])) < 0.2 and p[1] < q[1]
                                    for p, q in zip(points, points[1:])), "a falling line")
    # what is not finite is a gap with a mark
    text, _ = page_of(write("nan.jsonl", "".join(row(i, loss=None if i in (7, 8) else 5 - i / 40) for i in range(1, 41))))
    check("of 2 steps it is not finite" in text and text.count("not finite</title>") == 2, "two steps that are not finite")
    check([len(d) for d in lines_of(text, "Loss")] == [6, 32], "a line with a gap")
    text, _ = page_of(write("nothing.jsonl", "".join(row(i, loss=None, grad_norm=None) for i in range(1, 4))))
    check("loss of no step is finite" in text, "no step is finite")
    page_of(write("one.jsonl", row(1, loss=1e30)))
    page_of(write("names.jsonl", row(1, shape="s<4k>&\"x\"")))
    # a step that is told twice, after a crash, counts once
    text, _ = page_of(write("twice.jsonl", "".join(row(i) for i in [*range(1, 31), *range(21, 41)])))
    check("<b>40</b> of them" in text, "steps told twice")
    text, err = page_of(write("cut.jsonl", ("".join(row(i) for i in range(1, 41)))[:-30]))
    check("<b>39</b> of them" in text and "cut.jsonl:40: the last line is cut off" in err, f"a line that is cut off: {err}")
    text, _ = page_of(write("rehearsal.jsonl", '{"step":1,"executed_ms":2.5,"modelled_ms":2.4,"late_ms":0,"scale":1,"real_ms":3}\n'))
    check("median step 2.50 ms" in text and 'aria-label="Loss"' not in text, "a rehearsal")
    wrong = [("", "has no step"), ("\n\n", "has no step"), ('{"step":3,"eval_loss":2}\n', "has no step"), ("hello\n", ":1: not JSON"),
             (row(1) + "[1]\n", ":2: a line of a log"), (row(1) + '{"step":"2"}\n', ":2: a line of a log"),
             ('{"step":0,"step_ms":1}\n', ":1: a line of a log"), ('{"step":1,"loss":2}\n', 'neither "step_ms" nor'),
             (row(1, load=7), '"load" is no list'), (row(1, load=[[1, 2], [3]]), "is not a list of 2 numbers for each of 2"),
             (row(1, load=[[1, -2]]), "is not a list of 2"), (row(1)[:40], "has no step")]
    for text, says in wrong:
        code, out, err = run(write("wrong.jsonl", text), "-o", "none.html")
        check(code == 1 and says in err and "wrong.jsonl" in err and not out and not os.path.exists("none.html"), f"{text[:40]!r}: {code} {err}")
    for words, says in ((["nowhere.jsonl"], "cannot read nowhere.jsonl"), (["."], "cannot read ."), (["run.jsonl", "-o", "run.jsonl"], "it is what"),
                        (["run.jsonl", "--measured", "wrong.jsonl", "-o", "wrong.jsonl"], "it is what")):
        code, _, err = run(*words)
        check(code == 1 and says in err and err.count("\n") == 1, f"{words}: {code} {err}")


def load():
    r = random.Random(1)
    cells = [[max(0, int(r.gauss(100, 40))) for _ in range(300)] for _ in range(3)]
    text, _ = page_of(write("load.jsonl", row(1) + row(2, load=cells, load_dropped=[[1] * 300] * 3, fullest_expert=2, dropped=900)))
    check("900 pairs of token and expert were dropped" in text and "in step 2" in text, "load in words")
    svg = re.search(r'by layer">(.*?)</svg>', text, re.S).group(1)
    found = sum(d.count("z") for d in re.findall(r' d="([^"]*)"', svg))
    check(found == 3 * 192, f"{found} cells, 3 x 192 expected")
    text, _ = page_of(write("load.jsonl", row(1, load=[[10, 0, 20, 90]])))
    svg = re.search(r'by layer">(.*?)</svg>', text, re.S).group(1)
    paths = [d.count("z") for d in re.findall(r' d="([^"]*)"', svg)]
    check(paths == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], f"of 11 parts of three means of 30: 0, 1, 2 and 11: {paths}")


def traces():
    subprocess.run([MOEC, "schedule", f"{SPECS}/tiny.moespec", "--trace", "model.json"], check=True, stdout=subprocess.DEVNULL)
    with open("model.json", encoding="utf-8") as file:
        model = json.load(file)
    # a run that took twice the time, with two ranks of the first group
    events = []
    for e in model["traceEvents"]:
        for rank in ([0, 1] if e["pid"] == 0 else [e["pid"] + 1]):
            more = {"args": {"name": f"rank {rank} {e['args']['name']}"}} if e["name"] == "process_name" else {}
            more |= {"ts": 2 * e["ts"], "dur": 2 * e["dur"]} if e["ph"] == "X" else {}
            events.append({**e, "pid": rank, **more})
    with open("ran.json", "w", encoding="utf-8") as out:
        json.dump({"traceEvents": events}, out)
    text, _ = page_of("run.jsonl", "--measured", "ran.json", "--predicted", "model.json")
    data = json.loads(re.search(r'id="timelines">(.*?)</script>', text, re.S).group(1))
    (line,) = data["rows"]
    check(line["groups"] == ["A0 model", "A0 rank 0", "A0 rank 1", "A1 model", "A1 rank 2", "F0 model", "F0 rank 3", "F1 model", "F1 rank 4"],
          f"rows: {line['groups']}")
    ops = sum(e["ph"] == "X" and e["dur"] > 0 for e in events) + sum(e["ph"] == "X" and e["dur"] > 0 for e in model["traceEvents"])
    check(sum(len(lane) for lane in line["lanes"]) == 5 * ops, "a rectangle for every op")
    end = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    check(abs(line["step"] - 1e3 * end) < 2, f"the step ends at {line['step']} ns, not {end} us")
    bars = re.findall(r"<title>(measured|predicted) ([\d.]+) (\w+)</title>", text)
    units = {"ns": 1, "us": 1e3, "ms": 1e6}
    times = [float(t) * units[u] for _, t, u in bars]
    check(len(bars) >= 20 and all(abs(a / b - 2) < 0.02 for a, b in zip(times[::2], times[1::2])), f"not twice as long: {bars}")
    for one in (["--measured", "ran.json"], ["--predicted", "model.json"]):
        page_of("run.jsonl", *one)
    op = {"ph": "X", "pid": 0, "tid": 0, "name": "ATT_FWD l0", "cat": "ATT_FWD", "ts": 0, "dur": 1}
    name = {"name": "process_name", "pid": 0, "args": {"name": "rank 0 A0"}}
    for events, says in (([], "there are no ops"), ([op], "event 1: not an op"), ([name, {**op, "dur": 1e300}], "event 2: begins at 0 us and takes 1e+300"),
                         ([name, {**op, "ts": -1}], "event 2: begins at -1"), ([name, {**op, "cat": "GEMM"}], "event 2: not an op"),
                         ([{**name, "args": {"name": "<b>"}}], "event 1: the name of a group"), ([name, {**op, "tid": 9}], "event 2: not an op"),
                         ([name, {**op, "pid": 1 << 40}], "event 2: not an op"), ("x", 'no "traceEvents"')):
        write("wrong.json", json.dumps({"traceEvents": events}))
        code, _, err = run("run.jsonl", "--measured", "wrong.json")
        check(code == 1 and says in err and err.count("\n") == 1, f"{says}: {code} {err}")
    write("wrong.json", '{"traceEvents": [')
    check("wrong.json:1:" in run("run.jsonl", "--predicted", "wrong.json")[2], "a trace that is cut off")


def huge():
    """A million lines: a page of the usual size, in seconds."""
    with open("huge.jsonl", "w", encoding="utf-8") as out:
        for i in range(1, 1000001):
            out.write(f'{{"step":{i},"loss":{2 + 5 * math.exp(-i / 1e5):.6f},"grad_norm":{i % 7},"tokens_per_s":3e4,"step_ms":2.5}}\n')
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    text, _ = page_of("huge.jsonl")
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
    check("<b>1000000</b> of them" in text and len(text) < 200000, f"{len(text)} bytes")
    check(took < 60, f"{took} s of processor time")
    os.remove("huge.jsonl")


began = time.monotonic()
for part in (logs, load, traces, huge):
    part()
print(f"{command_line.passed} passed, {command_line.failed} failed, {time.monotonic() - began:.0f} s")
sys.exit(1 if command_line.failed else 0)
