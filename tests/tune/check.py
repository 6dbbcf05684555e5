#!/usr/bin/env python3
"""`moec tune` and `moec calibrate` from the outside.

  check.py --moec MOEC --specs DIR --work DIR CASE

  cpu       trials that really train; the tuned spec reads back as the same plan
  failing   a trial that fails is a row with its reason; if all fail, exit code 1
  signals   a signal ends the trial that runs, or the compiling, and moec after it; nothing is left behind
  repeat    the same measurements, the same trials and the same text
  pinned    what the spec pins is left alone; a spec with no plan at all ends with exit code 3
  usage     wrong options: one line, exit code 2
  fit       rates fitted to a modelled timeline are those it was modelled with, from a bad first description as well
  foreign   a trace of another program, or with a time that is none, is refused, and nothing is written
  outputs   files that cannot be written are refused first; what is written is in the usual layout
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

FREE = """use "{specs}/hardware/cpu.moespec"
model tiny {{ layers = 4;  hidden = 64;  vocab = 256
  attention {{ heads = 4;  kv_heads = 2;  head_dim = 16;  qk_norm = head }}
  moe       {{ experts = 8;  top_k = 2;  hidden = 128 }} }}
cluster desk {{ nodes = {nodes};  node = cpu_host }}
shape s {{ seq = 64;  micro_batch = 1;  global_batch = 8 }}
train {{ dtype = fp32 }}
plan {{ {pins} }}
"""


def check(ok, text):
    if not ok:
        print("FAIL:", text)
        sys.exit(1)


class Case:
    def __init__(self, args):
        self.args = args
        self.work = os.path.join(args.work, args.case)
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(self.work)
        self.env = dict(os.environ, MOEC_CACHE=os.path.join(args.work, "objects"), TMPDIR=self.work)

    def path(self, name):
        return os.path.join(self.work, name)

    def moec(self, *words, code=0):
        done = subprocess.run([self.args.moec, *words], env=self.env, capture_output=True, text=True)
        check(done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done

    def free(self, name, pins, nodes=1):
        with open(self.path(name), "w", encoding="ascii") as out:
            out.write(FREE.format(specs=os.path.abspath(self.args.specs), pins=pins, nodes=nodes))
        return self.path(name)

    def no_rest(self):
        rest = [name for name in os.listdir(self.work) if name.startswith("moec-tune")]
        check(not rest, f"temporary folders are left: {rest}")


def rows(text):
    """(plan, rest of the row) of every trial."""
    found = re.findall(r"^ *\d+  (\S+: .*?)  +([0-9.]+ (?:ns|us|ms|s)\b.*)$", text, re.M)
    check(bool(found), f"no trials in\n{text}")
    return found


def write_log(values):
    """A command that logs what python's `values` say of the trial's spec, `text`."""
    code = ("import os,json,sys; text=open(os.environ['MOEC_TRIAL_SPEC']).read(); "
            f"ms={values}; "
            "open(sys.argv[1],'w').write(''.join(json.dumps({'step':i,'step_ms':ms})+chr(10) for i in range(4)))")
    return f'{sys.executable} -c "{code}" {{log}}'


def case_cpu(case):
    spec = os.path.join(case.args.specs, "tiny.moespec")
    out = case.path("tuned.moespec")
    done = case.moec("tune", spec, "--trials", "2", "--steps", "3", "-o", out, "--work", case.path("trials"))
    found = rows(done.stdout)
    check(len(found) == 2 and "failed" not in done.stdout, done.stdout)
    check(sum(row[1].endswith("best") for row in found) == 1, done.stdout)
    check(os.path.exists(case.path("trials/trial-2/bundle/train")), "--work keeps no bundle")
    plan = json.loads(case.moec("plan", out, "--json").stdout)
    best = next(row[0] for row in found if row[1].endswith("best"))
    check(f"{plan['p_attention']} x {plan['attention_gpus'][0]} + {plan['p_ffn']} x {plan['ffn_gpus'][0]} GPUs, "
          f"{plan['in_flight']} in flight" in best, f"{best} reads back as {plan}")
    block = re.search(r"^plan \{.*?^\}", done.stdout, re.M | re.S).group(0)
    check(block in open(out, encoding="ascii").read(), "the pins printed are not those written")


def case_failing(case):
    spec = case.free("free.moespec", "replicas = 1")
    seed = case.moec("tune", spec, "--launch", write_log("5.0"), "--trials", "1").stdout
    pin = re.search(r"in_flight *= (\d+)", seed).group(1)
    command = f"if grep -q '^ *in_flight *= {pin}$' {{spec}}; then echo no luck; echo; exit 3; fi; " + write_log("5.0")
    done = case.moec("tune", spec, "--launch", command, "--trials", "4")
    check("failed: exit code 3: no luck" in done.stdout and "did not run" in done.stdout, done.stdout)
    done = case.moec("tune", spec, "--launch", "true {log}", "--trials", "2", code=1)
    check(done.stdout.count("failed: it wrote no log") == 2, done.stdout)
    check("none of 2 trials ran" in done.stderr, done.stderr)
    done = case.moec("tune", spec, "--launch", "kill -9 $$ {log}", "--trials", "1", code=1)
    check("failed: ended by signal 9" in done.stdout, done.stdout)
    case.no_rest()


def wait_for(what, text, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        check(time.monotonic() < end, f"no {text} after {seconds} s")
        time.sleep(0.02)


def running(group):
    """Processes of a process group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                state, _, of = f.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.append(int(pid))
    return found


def signalled(case, sig, whole_group, mark, words):
    """Starts `moec tune`, sends it a signal when the file `mark` has a line, and returns exit code and what it said."""
    def defaults():
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_DFL)

    process = subprocess.Popen([case.args.moec, "tune", *words], env=case.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, preexec_fn=defaults)
    wait_for(lambda: process.poll() is not None or os.path.exists(mark) and open(mark, encoding="ascii").read().endswith("\n"),
             f"trial before {sig}")
    begin = time.monotonic()
    (os.killpg if whole_group else os.kill)(process.pid, sig)
    out, err = process.communicate(timeout=60)
    took = time.monotonic() - begin
    check(took < 20, f"{sig}: took {took:.1f} s to end")
    return process.returncode, out, err


def case_signals(case):
    spec, mark, ran = case.free("free.moespec", "replicas = 1"), case.path("mark"), case.path("ran")
    command = f"if [ -e {ran} ]; then echo $$ > {mark}; sleep 300 | sleep 300; fi; touch {ran}; " + write_log("5.0")
    for sig, code in ((signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)):
        for whole_group in (False, True):  # kill, or Ctrl-C in a terminal
            got, out, err = signalled(case, sig, whole_group, mark, [spec, "--launch", command, "--trials", "3"])
            check(got == code, f"{sig}: exit code {got}, not {code}\n{out}{err}")
            check(len(rows(out)) == 1 and "interrupted after 1 of 3 trials" in err, out + err)
            group = int(open(mark, encoding="ascii").read())
            check(not running(group), f"{sig}: the trial still runs: {running(group)}")
            case.no_rest()
            os.remove(mark)
            os.remove(ran)
    # a trial that does not listen is killed once its shell has gone
    command = f"(trap '' TERM; echo $$ > {mark}; sleep 300; sleep 300) & sleep 300; : {{log}}"
    got, out, err = signalled(case, signal.SIGTERM, False, mark, [spec, "--launch", command])
    check(got == -signal.SIGTERM and not running(int(open(mark, encoding="ascii").read())), f"exit code {got}\n{out}{err}")
    case.no_rest()
    os.remove(mark)
    # while it compiles
    compiler = case.path("cc")
    with open(compiler, "w", encoding="ascii") as f:
        f.write(f'#!/bin/sh\ncase " $* " in *" -c "*) echo >> {mark}; sleep 3;; esac\nexec cc "$@"\n')
    os.chmod(compiler, 0o755)
    case.env["MOEC_CACHE"] = case.path("objects")
    got, out, err = signalled(case, signal.SIGTERM, False, mark, [spec, "--cc", compiler, "--steps", "3"])
    started = open(mark, encoding="ascii").read().count("\n")
    check(got == -signal.SIGTERM and started <= os.cpu_count(), f"exit code {got}, {started} compilers\n{out}{err}")
    case.no_rest()


def case_repeat(case):
    spec = case.free("free.moespec", "replicas = 1")
    values = "float(text.count('1')) + len(text) % 7"
    texts = [case.moec("tune", spec, "--launch", write_log(values), "--trials", "6").stdout for _ in range(2)]
    check(texts[0] == texts[1], f"two runs differ:\n{texts[0]}\n{texts[1]}")
    plans = [row[0] for row in rows(texts[0])]
    check(len(set(plans)) == len(plans) == 6, f"a plan was tried twice:\n{texts[0]}")
    # a tie is no reason to leave the planner's own plan
    pin = re.search(r"in_flight *= (\d+)", case.moec("tune", spec, "--launch", write_log("5.0"), "--trials", "1").stdout).group(1)
    values = f"5.0 if 'in_flight={pin}' in text.replace(' ', '').split() else {{}}"
    out = case.path("tied.moespec")
    text = case.moec("tune", spec, "--launch", write_log(values.format(4.999)), "--trials", "4", "-o", out).stdout
    check("of 4 plans tried none is faster than the planner's own" in text and rows(text)[0][1].endswith("best"), text)
    check(re.search(rf"in_flight *= {pin}\n", open(out, encoding="ascii").read()), "another plan was written")
    text = case.moec("tune", spec, "--launch", write_log(values.format(4.99)), "--trials", "4").stdout
    check("1.002x faster than the planner's own plan" in text, text)
    case.moec("fmt", out, "--check")
    auto = case.free("auto.moespec", "schedule = auto;  replicas = 1")
    text = case.moec("tune", auto, "--launch", write_log("3.0"), "--trials", "6").stdout
    check(len({row[0].split(":")[0] for row in rows(text)}) > 1, f"one system alone:\n{text}")
    case.no_rest()


def case_pinned(case):
    pins = "replicas = 1;  attention_gpus = 2;  ffn_gpus = 3;  stages = 1"
    text = case.moec("tune", case.free("pinned.moespec", pins), "--launch", write_log("2.0"), "--trials", "4").stdout
    check(all("1 x 2 + 1 x 3 GPUs" in row[0] for row in rows(text)), text)
    nodes = case.free("nodes.moespec", "replicas = 1;  attention_nics = 8", nodes=2)
    text = case.moec("tune", nodes, "--launch", write_log("2.0"), "--trials", "3").stdout
    check(all(", 8 + " in row[0] for row in rows(text) if "NICs" in row[0]), text)
    never = case.free("never.moespec", "replicas = 1")
    with open(never, encoding="ascii") as old:
        text = old.read().replace("hidden = 64", "hidden = 16384").replace("head_dim = 16", "head_dim = 4096")
    with open(never, "w", encoding="ascii") as out:
        out.write(text)
    check("no plan" in case.moec("tune", never, code=3).stderr, "no reason")


def case_usage(case):
    spec = case.free("free.moespec", "replicas = 1")
    for words in (["tune", spec, "--trials", "0"], ["tune", spec, "--steps", "2"], ["tune", spec, "--steps", "x"],
                  ["tune", spec, "--radius", "-1"], ["tune", spec, "--launch", "true"], ["tune", spec, "--target", "tpu"],
                  ["tune", spec, "--system", "none"], ["tune"], ["calibrate"], ["calibrate", "--run", "a"],
                  ["calibrate", "--run", "a,b", "--name", "1 2"], ["calibrate", spec], ["plan", spec, "--trials", "3"]):
        done = case.moec(*words, code=2)
        check(done.stderr.count("\n") == 1, f"{words}: {done.stderr}")


def case_outputs(case):
    """A file that cannot be written is known before the first trial; what is written is in the usual layout."""
    spec, mark = case.free("free.moespec", "replicas = 1"), case.path("mark")
    os.mkdir(case.path("folder"))
    trace = case.path("trace.json")
    case.moec("schedule", spec, "--trace", trace)
    for out in (case.path("nowhere/x"), case.path("folder")):
        done = case.moec("tune", spec, "--launch", f"touch {mark}; " + write_log("5.0"), "-o", out, code=1)
        check(not os.path.exists(mark) and done.stdout == "" and "cannot write" in done.stderr, done.stdout + done.stderr)
        done = case.moec("calibrate", "--run", f"{spec},{trace}", "-o", out, code=1)
        check("cannot write" in done.stderr, done.stderr)
    out = case.path("out.moespec")
    for words in (["tune", spec, "--launch", write_log("5.0"), "--trials", "2"], ["calibrate", "--run", f"{spec},{trace}"]):
        case.moec(*words, "-o", out)
        case.moec("fmt", out, "--check")
    check(sorted(os.listdir(case.work)) == ["folder", "free.moespec", "out.moespec", "trace.json"], os.listdir(case.work))


def rates(text):
    return {k: float(v) for k, v in re.findall(r"^ +(\w+) += ([0-9.e+]+)", text, re.M)}


def case_fit(case):
    spec = case.path("spec.moespec")
    with open(spec, "w", encoding="ascii") as out:
        out.write("""
gpu g { flops = 100 TFLOPS;  memory = 80 GiB;  hbm = 2 TB/s;  launch = 3 us
  efficiency { gemm = 0.61;  grouped_gemm = 0.43;  attention = 0.27;  memory = 0.83 } }
node n { gpu = g;  gpus = 4;  nics = 2;  nvlink = 70 GB/s;  nic = 13 GB/s;  nvlink_latency = 3 us;  nic_latency = 9 us }
model m { layers = 6;  hidden = 1024;  vocab = 32768
  attention { heads = 16;  kv_heads = 4;  head_dim = 64 }
  moe { experts = 32;  top_k = 4;  hidden = 768 } }
cluster c { nodes = 2;  node = n }
shape s { seq = 2048;  micro_batch = 1;  global_batch = 32 }
train { dtype = bf16 }
plan { replicas = 1 }
""")
    trace, library = case.path("trace.json"), case.path("library.moespec")
    case.moec("schedule", spec, "--trace", trace)
    case.moec("calibrate", "--run", f"{spec},{trace}", "--name", "again", "-o", library)
    text = open(library, encoding="ascii").read()
    want = dict(gemm=0.61, grouped_gemm=0.43, attention=0.27, memory=0.83, launch=3000, nvlink=70e9, nic=13e9,
                nvlink_latency=3000, nic_latency=9000)
    got = rates(text)
    for key, value in want.items():
        check(key in got and abs(got[key] / value - 1) < 0.01, f"{key} is {got.get(key)}, not {value}:\n{text}")
    check("gpu again {" in text and "node again_node {" in text, text)
    uses = case.path("uses.moespec")
    with open(spec, encoding="ascii") as old, open(uses, "w", encoding="ascii") as out:
        body = old.read().replace("node = n }", "node = again_node }")
        out.write('use "library.moespec"\n' + body[body.index("model m"):])
    a, b = (json.loads(case.moec("plan", path, "--json").stdout)["step_ns"] for path in (spec, uses))
    check(abs(a / b - 1) < 0.01, f"a step of {a} ns by the first description, {b} ns by the fitted one")


def case_foreign(case):
    spec, other = case.free("free.moespec", "replicas = 1;  stages = 2"), case.free("other.moespec", "replicas = 1;  stages = 1")
    trace, out = case.path("trace.json"), case.path("library.moespec")
    case.moec("schedule", other, "--trace", trace)
    done = case.moec("calibrate", "--run", f"{spec},{trace}", "-o", out, code=1)
    check("not the same program" in done.stderr or "has none" in done.stderr, done.stderr)
    case.moec("schedule", spec, "--trace", trace)
    with open(trace, encoding="ascii") as f:
        lines = f.read().split("\n")
    at = next(i for i, line in enumerate(lines) if "ATT_FWD" in line)
    for value, says in ((' "dur": 0,', "is 0;"), (' "dur": -1.5,', "is -1.5;"), (' "dur": 1e300,', "at most 1e+15"), (' "dur": "x",', 'is "x";'), ("", "has no")):
        with open(trace, "w", encoding="ascii") as f:
            f.write("\n".join(lines[:at] + [re.sub(r' "dur": [0-9.]+,', value, lines[at])] + lines[at + 1:]))
        err = case.moec("calibrate", "--run", f"{spec},{trace}", "-o", out, code=1).stderr
        check(f"trace.json:{at + 1}: " in err and says in err and "ATT_FWD" in err, err)
    with open(trace, "w", encoding="ascii") as f:
        f.write('{"traceEvents": [\n')
    check("trace.json:" in case.moec("calibrate", "--run", f"{spec},{trace}", "-o", out, code=1).stderr, "no place in the trace")
    for text in ("{}", '{"traceEvents": [{"ph": "X"}]}', '{"traceEvents": 3}', "[]"):
        with open(trace, "w", encoding="ascii") as f:
            f.write(text)
        case.moec("calibrate", "--run", f"{spec},{trace}", "-o", out, code=1)
    case.moec("calibrate", "--run", f"{case.path('none')},{trace}", "-o", out, code=1)
    check(not os.path.exists(out), "something was written")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--specs", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("case")
    args = parser.parse_args()
    globals()[f"case_{args.case}"](Case(args))


if __name__ == "__main__":
    main()
