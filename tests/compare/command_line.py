#!/usr/bin/env python3
"""The command line as a user meets it: wrong usage, the JSON contract of compare, the page, sweeps.
   command_line.py PART --moec PROGRAM --specs FOLDER"""
import argparse
import html.parser
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SYSTEMS = ["af_pipe", "afd", "megatron", "megatron_overlap", "tutel", "comet", "dualpipe", "dualpipev"]
SPEC = """
use "{specs}/hardware/h800.moespec"
model small {{
  layers = 8;  hidden = 1024;  vocab = 32000
  attention {{ heads = 16;  kv_heads = 4;  head_dim = 64 }}
  moe       {{ experts = 32;  top_k = 4;  hidden = 1024;  imbalance = 1.2 }}
}}
let NODES = 2
cluster lab {{ nodes = NODES;  node = hgx_h800 }}
shape s2k {{ seq = 2Ki;  global_batch = 64 }}
shape s4k {{ seq = 4Ki;  global_batch = 32 }}
"""

passed = failed = 0


def check(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("failed:", what)


class Bench:
    def __init__(self, moec, specs):
        self.moec, self.specs = moec, os.path.abspath(specs)
        self.folder = tempfile.TemporaryDirectory()
        self.tiny = os.path.join(self.specs, "tiny.moespec")
        self.spec = self.path("small.moespec")
        with open(self.spec, "w", encoding="utf-8") as out:
            out.write(SPEC.format(specs=self.specs))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run(self, *words):
        done = subprocess.run([self.moec, *words], capture_output=True, text=True, timeout=280, cwd=self.folder.name)
        return done.returncode, done.stdout, done.stderr

    def ok(self, *words):
        code, out, err = self.run(*words)
        check(code == 0, f"moec {' '.join(words)}: exit code {code}: {err}")
        if code != 0:
            raise SystemExit(f"moec {' '.join(words)}: {err}")
        return out


def usage(bench):
    """Whatever is wrong with the words of the command line ends with 2, one message and nothing on stdout."""
    tiny = bench.tiny
    wrong = [
        (["check", tiny, "--json"], "`check` takes no --json; that is for plan, schedule and compare"),
        (["fmt", tiny, "--shape", "s128"], "takes no --shape"),
        (["plan", tiny, "--trace", "x"], "takes no --trace"),
        (["plan", tiny, "--explain", "--json"], "choose one"),
        (["schedule", tiny, "-o", "x"], "takes no --out"),
        (["build", tiny, "--json"], "takes no --json"),
        (["compare", tiny, "--system", "tutel"], "takes no --system"),
        (["keys", tiny], "takes no file"),
        (["keys", "--json"], "takes no --json"),
        (["compare"], "which file"),
        (["compair", tiny], "did you mean 'compare'"),
        (["fmt", tiny, "-w", "--check"], "choose one"),
        (["plan", tiny, "--system", "megatrom"], "did you mean 'megatron'"),
        (["plan", tiny, "--system"], "needs a value"),
        (["compare", tiny, "--systems", "tutel,comit"], "did you mean 'comet'"),
        (["compare", tiny, "--systems", "tutel,tutel"], "twice"),
        (["compare", tiny, "--systems", ""], "there is no system ''"),
        (["compare", tiny, "--systems", "auto"], "there is no system 'auto'"),
        (["plan", tiny, "--shape", "s129"], "did you mean 's128'"),
        (["plan", tiny, "-D", "Q=1"], "no let of this name"),
        (["plan", tiny, "-D", "S"], "expected name=value"),
        (["plan", tiny, "-D", "S=0"], "seq must be at least 1"),
        (["plan", tiny, "-D", "S=4GB"], "is a size"),
        (["compare", tiny, "--sweep", "seq"], "expected key=value"),
        (["compare", tiny, "--sweep", "seq="], "no values"),
        (["compare", tiny, "--sweep", "sequence=1"], "cannot be swept"),
        (["compare", tiny, "--sweep", "seq=1,,2"], "is not 1 value"),
        (["compare", tiny, "--sweep", "seq:top_k=1:2,3"], "is not 2 values"),
        (["compare", tiny, "--sweep", "seq=128", "--sweep", "seq=256"], "moves seq twice"),
        (["compare", tiny, "--sweep", "top_k=1,0"], "top_k must be at least 1"),
        (["compare", tiny, "--sweep", "dedup=rank,none"], "dedup is one of"),
        (["plan", tiny, "--shape", ""], "needs the name of a shape"),
        (["plan", tiny, "--shape", "s128,,s128"], "a name is empty"),
        (["compare", tiny, "--sweep", "seq=4GiB"], "is a size"),
        (["compare", tiny, "--sweep", "seq=4 }"], "--sweep seq"),
        (["schedule", tiny, "--svg", "a.svg", "--svg", "b.svg"], "given twice: --svg"),
    ]
    for words, text in wrong:
        code, out, err = bench.run(*words)
        check(code == 2, f"moec {' '.join(words)}: exit code {code}, 2 expected: {err}")
        check(out == "", f"moec {' '.join(words)}: printed {out[:80]!r}")
        check(text in err, f"moec {' '.join(words)}: {text!r} is not in {err!r}")
    # a spec that is wrong without its -D is wrong
    with open(bench.path("wrong.moespec"), "w", encoding="utf-8") as out:
        out.write("let A = 1\nmodel { layers = A }\n")
    check(bench.run("check", bench.path("wrong.moespec"), "-D", "A=2")[0] == 1, "a wrong spec with -D: 1 expected")
    for verb in ["check", "fmt", "plan", "schedule", "sim", "compare", "build", "keys"]:
        text = bench.ok(verb, "--help")
        check(f"moec {verb}" in text and ("\n  --json" in text) == (verb in ["plan", "schedule", "compare"]),
              f"help of {verb}")
    check("--sweep" in bench.ok("--help"), "help of all")
    # files: a folder that is not there is an error of writing, exit 1, and nothing is left behind
    code, _, err = bench.run("sim", tiny, "-o", bench.path("nowhere/x.svg"))
    check(code == 1 and "cannot write" in err, f"sim to nowhere: {code} {err}")
    code, _, err = bench.run("compare", tiny, "--systems", "af_pipe", "--html", bench.path("nowhere/x.html"))
    check(code == 1 and "cannot write" in err, f"compare to nowhere: {code} {err}")
    # links are followed, also those to files that are not there yet; a pipe stays a pipe
    os.symlink("there.svg", bench.path("link.svg"))
    for _ in range(2):
        bench.ok("sim", tiny, "-o", bench.path("link.svg"))
        check(os.path.islink(bench.path("link.svg")) and not os.path.islink(bench.path("there.svg")), "a link was replaced")
    os.mkfifo(bench.path("pipe"))
    reader = subprocess.Popen(["cat", bench.path("pipe")], stdout=subprocess.PIPE, text=True)
    bench.ok("sim", tiny, "-o", bench.path("pipe"))
    check("</svg>" in reader.communicate(timeout=60)[0] and not os.path.isfile(bench.path("pipe")), "a pipe was replaced")
    os.symlink("loop.svg", bench.path("loop.svg"))
    code, _, err = bench.run("sim", tiny, "-o", bench.path("loop.svg"))
    check(code == 1 and "Too many levels" in err and os.path.islink(bench.path("loop.svg")), f"a circle of links: {code} {err}")
    check(not [n for n in os.listdir(bench.folder.name) if ".tmp" in n], "a temporary file is left")
    # same input, same bytes, the solver's clock included
    check(json.loads(bench.ok("plan", tiny, "--json"))["solver"]["ms"] == 0, "plan --json shows the clock")
    text = bench.ok("sim", tiny, "-o", bench.path("t.svg"))
    check("exposed" in text and "bubble" in text and "MFU" in text, "sim says nothing")
    root = xml.etree.ElementTree.parse(bench.path("t.svg")).getroot()
    check(root.tag == "{http://www.w3.org/2000/svg}svg", "the drawing is not SVG")
    check(len(root.findall("{http://www.w3.org/2000/svg}rect")) > 100, "the drawing is empty")
    text = bench.ok("plan", bench.spec, "--explain", "--svg", bench.path("roof.svg"))
    check(len(text) > len(bench.ok("plan", bench.spec)) + 200, f"nothing explained: {text}")
    check(xml.etree.ElementTree.parse(bench.path("roof.svg")).getroot().tag.endswith("svg"), "the roofline is not SVG")
    for system in SYSTEMS:
        code, out, err = bench.run("plan", bench.spec, "--shape", "s2k", "--system", system, "--json")
        check(code == 0 and json.loads(out)["system"] == system, f"plan --system {system}: {code} {err}")
    out = bench.ok("plan", bench.spec, "--shape", "s2k", "--system", "auto")
    check(re.search(r"auto: \w+, (as fast as \w+, )?[0-9.]+x faster than \w+, the next", out), f"auto: {out[-200:]}")


def outputs(bench):
    """No output takes the place of what is read, however it is spelled, nor of another output."""
    shutil.copytree(os.path.join(bench.specs, "hardware"), bench.path("hardware"))
    shutil.copy(bench.tiny, bench.path("tiny.moespec"))
    os.symlink("hardware/cpu.moespec", bench.path("link.svg"))
    os.link(bench.path("hardware/cpu.moespec"), bench.path("hard.svg"))
    os.mkdir(bench.path("sub"))
    with open(bench.path("calls.moespec"), "w", encoding="utf-8") as out:
        out.write('use "tiny.moespec"\n')
    shutil.copy(bench.tiny, bench.path("drawn.svg"))  # its drawing has its own name

    def contents():
        return {name: open(bench.path(name), "rb").read() for name in ("hardware/cpu.moespec", "tiny.moespec", "calls.moespec", "drawn.svg")}
    before = contents()
    used = "hardware/cpu.moespec"
    for words in ([["sim", spec, "-o", out] for spec in ("tiny.moespec", "calls.moespec") for out in
                   (used, "./sub/../hardware//cpu.moespec", bench.path(used), "link.svg", "hard.svg")] +
                  [["tune", "tiny.moespec", "--trials", "1", "-o", used], ["plan", "tiny.moespec", "--svg", used],
                   ["schedule", "tiny.moespec", "--trace", used], ["compare", "tiny.moespec", "--html", used],
                   ["sim", "calls.moespec", "-o", "tiny.moespec"], ["sim", "drawn.svg"]]):
        code, out, err = bench.run(*words)
        check(code == 1 and err.count("\n") == 1 and f"it is what `moec {words[0]}` reads" in err, f"{words}: {code} {err}")
        check(before == contents() and out == "", f"{words}: a file that is read was written")
    for words in (["schedule", "tiny.moespec", "--svg", "x", "--trace", "./x"], ["sim", "tiny.moespec", "-o", "x", "--trace", "sub/../x"],
                  ["sim", "tiny.moespec", "--trace", "tiny.svg"]):
        code, out, err = bench.run(*words)
        check(code == 1 and err.count("\n") == 1 and "name the same file" in err and not os.path.exists(bench.path("x")), f"{words}: {code} {err}")
    code, _, err = bench.run("schedule", "tiny.moespec", "--svg", "/dev/null", "--trace", "/dev/null")
    check(code == 0, f"/dev/null twice: {err}")
    with open(bench.path("tiny.moespec"), "a", encoding="utf-8") as out:
        out.write("\n\n\n")
    bench.ok("fmt", "-w", "tiny.moespec")
    check(contents()["tiny.moespec"] == before["tiny.moespec"], "fmt -w writes what it reads")
    # the hardware that an imported spec uses is not replaced by it: in a moec of our own
    os.makedirs(bench.path("own/bin"))
    os.makedirs(bench.path("own/share/moec/specs"))
    shutil.copy(bench.moec, bench.path("own/bin/moec"))
    shutil.copytree(os.path.join(bench.specs, "hardware"), bench.path("own/share/moec/specs/hardware"))
    with open(bench.path("config.json"), "w", encoding="utf-8") as out:
        json.dump({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
                   "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}, out)
    for out, code in (("m.moespec", 0), ("own/share/moec/specs/hardware/h800.moespec", 1)):
        done = subprocess.run([bench.path("own/bin/moec"), "import", "config.json", "-o", out], capture_output=True, text=True,
                              cwd=bench.folder.name, timeout=60, check=False)
        check(done.returncode == code and ("it is what `moec import` reads" in done.stderr) == bool(code), f"import -o {out}: {done.stderr}")
    # a config.json that is no file, or of no family
    os.mkdir(bench.path("model"))
    os.mkfifo(bench.path("model/config.json"))
    code, _, err = bench.run("import", "model")
    check(code == 1 and "cannot read model/config.json: it is no file" in err, f"import of a pipe: {code} {err}")
    for value, says in (("7", "model_type 7 is not known"), ('["mixtral"]', 'model_type ["mixtral"] is not known'), ("null", "is missing")):
        with open(bench.path("config.json"), "w", encoding="utf-8") as out:
            out.write(f'{{"model_type": {value}}}')
        code, _, err = bench.run("import", "config.json")
        check(code == 1 and says in err and err.count("\n") == 1, f"model_type {value}: {code} {err}")


def refusals(bench):
    """What no plan of a system can do, with the caret under the pin that asks for it."""
    with open(bench.tiny, encoding="utf-8") as file:
        text = file.read().replace('use "', f'use "{bench.specs}/')
    cases = [  # pins, what the caret is under, what is said
        ("schedule = dualpipe;  stages = 3", "stages = 3", "3 pipeline ranks, an even number"),
        ("schedule = dualpipe;  stages = 1", "stages = 1", "1 pipeline rank, an even number"),
        ("schedule = dualpipe;  expert_parallel = 4", "expert_parallel = 4", "2 micro-batches, at least 4"),
        ("schedule = dualpipe;  replicas = 8", "replicas = 8", "16 GPUs, the cluster has 8 (8 too few)"),
        ("schedule = dualpipe;  replicas = 4;  expert_parallel = 1", "replicas = 4", "2 micro-batches, at least 4"),
        ("schedule = dualpipev;  stages = 3", "stages = 3", "6 runs, but the model has 4 layers"),
        ("schedule = megatron_overlap;  stages = 2;  virtual_stages = 1", "virtual_stages = 1", "1 virtual stage, at least 2"),
        ("schedule = megatron_overlap;  stages = 4", "stages = 4", "1 virtual stage, at least 2"),
        ("schedule = megatron;  stages = 2;  virtual_stages = 2;  mb_group = 1", "mb_group = 1", "turns of 1 micro-batch, "),
        ("schedule = megatron;  stages = 2;  virtual_stages = 2;  mb_group = 99", "mb_group = 99", "at least 99"),
        ("schedule = tutel;  chunks = 4", "chunks = 4", "chunks = 4, but a sequence has 2 tokens"),
    ]
    for words, under, says in cases:
        name = bench.path("refused.moespec")
        with open(name, "w", encoding="utf-8") as out:
            out.write(re.sub(r"^plan \{.*\}$", f"plan {{ {words} }}", text, flags=re.M))
        code, out, err = bench.run("plan", name, *(["-D", "S=2"] if "chunks" in words else []))
        lines = err.splitlines() + ["", "", ""]
        caret = lines[1][lines[2].find("^"):][:lines[2].count("^") + lines[2].count("~")]
        check(code in (1, 3) and out == "" and says in lines[0], f"{words}: {code} {err}")
        check(caret == under, f"{words}: the caret is under {caret!r}, not {under!r}\n{err}")


ABSURD = """
model m {{ layers = 4;  hidden = 64;  vocab = 256
  attention {{ heads = 4;  kv_heads = 2;  head_dim = 16 }}
  moe {{ experts = 8;  top_k = 2;  hidden = 128 }} }}
gpu g {{ flops = {flops} FLOPS;  memory = 2 GiB;  hbm = {hbm} B/s }}
node n {{ gpu = g;  gpus = 4;  nics = 4;  nvlink = {nvlink} B/s;  nic = {nic} B/s }}
cluster c {{ nodes = {nodes};  node = n }}
shape s {{ seq = 512;  micro_batch = 2;  global_batch = 16 }}
"""


def absurd(bench):
    """Rates at which times leave the numbers that hold them are told as such; at those above a step is planned."""
    usual = {"flops": 5e10, "hbm": 1e10, "nvlink": 4e9, "nic": 4e9, "nodes": 1}
    for key, rate, nodes, refused in [(k, r, n, r < 1) for k, n in (("flops", 1), ("hbm", 1), ("nvlink", 1), ("nic", 2)) for r in
                                      (1e-300, 1e-6, 1000)] + [("nic", 1e-300, 1, False)]:
        with open(bench.path("absurd.moespec"), "w", encoding="utf-8") as out:
            out.write(ABSURD.format(**{**usual, key: rate, "nodes": nodes}))
        for system in ("af_pipe", "megatron"):
            code, _, err = bench.run("plan", "absurd.moespec", "--system", system)
            said = [line for line in err.splitlines() if "error:" in line]
            if refused:
                check(code == 1 and len(said) == 1 and f"error: at this {key} a step of shape s takes" in said[0], f"{key} {rate}: {code} {err}")
            else:
                check(code == 0 and not said, f"{key} {rate}: {code} {err}")


def texts(bench):
    """One of something is told as one, and a group without layers has none."""
    one = ABSURD.format(flops=5e10, hbm=1e10, nvlink=4e9, nic=4e9, nodes=1).replace("layers = 4", "layers = 1").replace("global_batch = 16", "global_batch = 2")
    with open(bench.path("one.moespec"), "w", encoding="utf-8") as out:
        out.write(one + "plan { schedule = megatron;  replicas = 1;  stages = 1 }\n")
    bench.ok("build", "one.moespec", "-o", "one", "--target", "emu")
    plan = subprocess.run([bench.path("one/train"), "--plan"], capture_output=True, text=True, timeout=60, check=False).stdout
    for text in (bench.ok("plan", "one.moespec"), bench.ok("schedule", "one.moespec"), bench.ok("sim", "one.moespec"), plan):
        check("1 micro-batch" in text and not re.search(r"\b1 (micro-batches|pairs|replicas|sequences|ranks|groups)\b", text), text[:400])
    head = ABSURD.format(flops=5e10, hbm=1e10, nvlink=4e9, nic=4e9, nodes=1).replace("vocab = 256", "vocab = 50000")
    with open(bench.path("head.moespec"), "w", encoding="utf-8") as out:
        out.write(head + "plan { schedule = af_pipe;  attention_stages = 2;  ffn_stages = 1;  replicas = 1 }\n")
    text = bench.ok("plan", "head.moespec")
    check(re.search(r"^A1 +1 +1  head  ", text, re.M) and "(0)" not in text, text)


def limits(bench):
    """Sizes that the language allows and no schedule can hold are refused at once, with both numbers and a place."""
    with open(bench.spec, encoding="utf-8") as file:
        text = file.read().replace("shape s4k", "# shape s4k")
    cases = [  # what changes, what is said
        ({"layers = 8": "layers = 1000"}, "error: 1000 layers: 1 to 255 can be scheduled"),
        ({"global_batch = 64": "global_batch = 1Mi"}, "at least 65536 micro-batches: 1 to 4096 of 8 layers"),
        ({"layers = 8": "layers = 128", "global_batch = 64": "global_batch = 32Ki"}, "at least 2048 micro-batches: 1 to 1024 of 128"),
        ({"NODES = 2": "NODES = 100000"}, "100000 nodes of 8 GPUs are 800000: up to 131072 can be planned"),
    ]
    for change, says in cases:
        name, changed = bench.path("large.moespec"), text
        for old, new in change.items():
            changed = changed.replace(old, new)
        with open(name, "w", encoding="utf-8") as out:
            out.write(changed)
        for system in ("af_pipe", "megatron"):
            done = subprocess.run([bench.moec, "plan", name, "--system", system], capture_output=True, text=True, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (5, 5)))
            check(done.returncode == 1 and says in done.stderr and "large.moespec:" in done.stderr,
                  f"{change}, {system}: {done.returncode} {done.stderr}")


NUMBERS = ["step_ns", "compute_ns", "overlapped_comm_ns", "exposed_comm_ns", "bubble_ns", "bubble", "exposed_step_ns",
           "mfu", "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_cluster_gpu", "peak_memory",
           "memory_limit", "gpus", "micro_batches"]


def check_row(row):
    name = f"{row['shape']} {row['system']}"
    for key in NUMBERS:
        check(isinstance(row.get(key), (int, float)) and row[key] >= 0, f"{name}: {key} is {row.get(key)}")
    total = row["compute_ns"] + row["exposed_comm_ns"] + row["bubble_ns"]
    check(abs(total - row["step_ns"]) <= 1e-6 * row["step_ns"] + 2, f"{name}: parts add to {total}, not {row['step_ns']}")
    check(abs(row["bubble"] - row["bubble_ns"] / row["step_ns"]) < 1e-9, f"{name}: bubble")
    check(0 < row["mfu"] < 1, f"{name}: mfu {row['mfu']}")
    check(row["peak_memory"] <= row["memory_limit"], f"{name}: memory")
    flat, rank = row["bytes_per_token"]["flat"], row["bytes_per_token"]["rank"]
    check(rank["dispatch"] <= flat["dispatch"], f"{name}: dedup moves more")
    if row["system"] in ["af_pipe", "afd"]:
        check(flat["p2p"] == 0, f"{name}: the N2M needs no p2p")


def json_part(bench):
    text = bench.ok("compare", bench.spec, "--json")
    table = json.loads(text)
    check(table["version"] == 1 and table["rules"], "version or rules")
    rows = table["rows"]
    check([(r["shape"], r["system"]) for r in rows] == [(s, n) for s in ["s2k", "s4k"] for n in SYSTEMS], "rows")
    by = {(r["shape"], r["system"]): r for r in rows if r["ran"]}
    for row in rows:
        if not row["ran"]:
            check(bool(row["reason"]), f"{row['system']}: no reason")
            continue
        check_row(row)
        for other, speedup in row["speedup_vs"].items():
            want = by[row["shape"], other]["step_ns"] / row["step_ns"]
            check(abs(speedup - want) < 1e-6 * want, f"{row['system']} against {other}: {speedup}, not {want}")
    ran = [n for n in SYSTEMS if ("s2k", n) in by]
    check(len(ran) >= 6, f"only {ran} ran")
    check(text == bench.ok("compare", bench.spec, "--json"), "twice the same, other bytes")
    few = json.loads(bench.ok("compare", bench.spec, "--shape", "s4k", "--systems", "dualpipe,af_pipe", "--json"))
    check([r["system"] for r in few["rows"]] == ["dualpipe", "af_pipe"], "--systems keeps its order")
    for row in few["rows"]:
        check(row == {**by["s4k", row["system"]], "speedup_vs": row["speedup_vs"]}, f"{row['system']} alone differs")
    # auto takes the fastest of them
    plan = json.loads(bench.ok("plan", bench.spec, "--shape", "s2k", "--system", "auto", "--json"))
    best = min((r for r in rows if r["ran"] and r["shape"] == "s2k"), key=lambda r: r["step_ns"])
    check(plan["system"] == best["system"] and plan["step_ns"] == best["step_ns"], f"auto: {plan['system']}")
    # a system that cannot run is a row with its reason, and no error
    with open(bench.path("short.moespec"), "w", encoding="utf-8") as out:
        out.write(SPEC.format(specs=bench.specs).replace("global_batch = 64", "global_batch = 2"))
    out = bench.ok("compare", bench.path("short.moespec"), "--shape", "s2k")
    check("cannot run" in out, f"everything runs two sequences: {out}")


class Tags(html.parser.HTMLParser):
    """Every element that begins also ends, in order; nothing refers to the network."""
    VOID = {"meta"}

    def __init__(self):
        super().__init__()
        self.open, self.count, self.bad = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data") or "url(" in (value or ""):
                self.bad.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.bad.append(f"</{tag}>")


def check_page(text, name):
    xml.etree.ElementTree.fromstring(text.split("\n", 1)[1])  # raises if it is not well-formed
    tags = Tags()
    tags.feed(text)
    check(not tags.open and not tags.bad, f"{name}: {tags.open} {tags.bad}")
    check(not re.search(r"https?://(?!www\.w3\.org/)|@import|fetch\(|XMLHttpRequest", text), f"{name}: reaches out")
    check("nan" not in re.sub(r"<script>.*", "", text, flags=re.S).lower().split(), f"{name}: not a number")
    check(len(text) < 5 << 20, f"{name}: {len(text)} bytes")
    return tags.count


def page(bench):
    first, second = bench.path("a.html"), bench.path("b.html")
    table = bench.ok("compare", bench.spec, "--html", first)
    bench.ok("compare", bench.spec, "--html", second)
    with open(first, encoding="utf-8") as one, open(second, encoding="utf-8") as two:
        text = one.read()
        check(text == two.read(), "twice the same, another page")
    count = check_page(text, "page")
    check(count.get("svg", 0) >= 6 and count.get("table", 0) == 2, f"page: {count}")
    for line in table.splitlines():
        check(not line.endswith(" "), f"blanks at the end of {line!r}")
    data = json.loads(re.search(r'id="timelines">(.*?)</script>', text, re.S).group(1))
    check(len(data["rows"]) >= 12, "timelines are missing")
    for row in data["rows"]:
        check(len(row["lanes"]) == 3 * len(row["groups"]), "lanes of a timeline")
        for lane in row["lanes"]:
            at = 0
            for i in range(0, len(lane), 5):
                check(lane[i] >= 0 and lane[i + 1] > 0 and lane[i + 2] < len(data["classes"]), "a rectangle")
                at += lane[i]
            check(at * row["unit"] <= row["step"] * 1.001, f"a rectangle beyond the step: {at * row['unit']}")
    # names and reasons with characters that mean something in markup
    with open(bench.path("odd.moespec"), "w", encoding="utf-8") as out:
        out.write(SPEC.format(specs=bench.specs).replace("global_batch = 64", "global_batch = 1"))
    bench.ok("compare", bench.path("odd.moespec"), "--html", first)
    with open(first, encoding="utf-8") as one:
        check_page(one.read(), "odd page")


def sweep(bench):
    some = ["--systems", "af_pipe,megatron,dualpipe", "--shape", "s2k"]
    table = json.loads(bench.ok("compare", bench.spec, *some, "--sweep", "seq=1Ki,2Ki,4096", "--json"))
    rows = table["rows"]
    check([(r["sweep"]["seq"], r["seq"]) for r in rows[::3]] == [("1Ki", 1024), ("2Ki", 2048), ("4096", 4096)], "seq")
    plain = json.loads(bench.ok("compare", bench.spec, *some, "--json"))["rows"]
    check([dict(r, sweep=None) for r in rows[3:6]] == [dict(r, sweep=None) for r in plain],
          "a sweep over the spec's own value differs from no sweep")
    steps = [r["step_ns"] for r in rows if r["system"] == "af_pipe"]
    check(steps == sorted(steps), f"longer sequences take less time: {steps}")
    # two keys at once, and a second sweep: the last moves fastest
    rows = json.loads(bench.ok("compare", bench.spec, *some, "--sweep", "nic=10GB/s,50 GB/s", "--sweep",
                               "seq:global_batch=1Ki:128,2Ki:64", "--json"))["rows"]
    check([tuple(r["sweep"].values()) for r in rows[::3]] ==
          [("10GB/s", "1Ki", "128"), ("10GB/s", "2Ki", "64"), ("50 GB/s", "1Ki", "128"), ("50 GB/s", "2Ki", "64")],
          f"points: {[r['sweep'] for r in rows[::3]]}")
    slow, fast = ([r["step_ns"] for r in rows if r["sweep"]["nic"] == n] for n in ["10GB/s", "50 GB/s"])
    check(all(a >= b for a, b in zip(slow, fast)), "faster NICs make a step slower")
    # pins of one system leave the others alone; keys in blocks that the file does not have
    for key in ["top_k=2,4", "expert_parallel=4,8", "virtual_stages=1,2", "attention_gpus:ffn_gpus=4:4,2:2",
                "attention_nics:ffn_nics=2:6,4:4", "dedup=rank,node", "nodes=1,2", "memory=40 GB,80 GB"]:
        rows = json.loads(bench.ok("compare", bench.spec, *some, "--sweep", key, "--json"))["rows"]
        check(len(rows) == 6 and any(r["ran"] for r in rows), f"--sweep {key}: {[r.get('reason') for r in rows]}")
    # values that do not go with the rest of the spec are rows that say why, the others are compared
    for values, why in (("stages=2,99", "layers is 8"), ("stages=99,2", "layers is 8"), ("top_k=4,64", "exceeds experts (32)")):
        table = json.loads(bench.ok("compare", bench.spec, *some, "--sweep", values, "--json"))["rows"]
        bad = [r for r in table if r["sweep"][values.split("=")[0]] in ("99", "64")]
        check(len(table) == 6 and len(bad) == 3 and all(not r["ran"] and why in r["reason"] for r in bad), f"{values}: {bad}")
        check(any(r["ran"] for r in table if r not in bad), f"{values}: nothing else ran")
    out = bench.ok("compare", bench.spec, *some, "--sweep", "stages=99", "--html", bench.path("none.html"))
    check("cannot run: 99 attention stages" in out and "no system can run this" in out, out[:400])
    name = bench.path("s.html")
    out = bench.ok("compare", bench.spec, *some, "--sweep", "nic=10GB/s,50 GB/s", "--sweep", "top_k=1,2,4", "--html", name)
    check(out.count("top_k=4") >= 8 and "fastest: " in out, "the table lacks points")
    with open(name, encoding="utf-8") as page_file:
        text = page_file.read()
    check_page(text, "page of a sweep")
    check(text.count("<path ") == 2 * 3, "two panels of three lines")
    # shapes that differ in length alone are one when the length is swept
    code, _, err = bench.run("compare", bench.spec, "--systems", "af_pipe", "--sweep", "seq=1Ki")
    check(code == 0 and "takes the first" in err, f"two shapes under a sweep of seq: {err}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["usage", "outputs", "absurd", "texts", "refusals", "limits", "json", "page", "sweep"])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--specs", required=True)
    args = parser.parse_args()
    {"usage": usage, "outputs": outputs, "absurd": absurd, "texts": texts, "refusals": refusals, "limits": limits, "json": json_part, "page": page,
     "sweep": sweep}[args.part](Bench(args.moec, args.specs))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
