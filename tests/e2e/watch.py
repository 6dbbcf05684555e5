#!/usr/bin/env python3
"""Watching a run: tokens and drops of every expert in the log, and the file of metrics.
   watch.py load|metrics --moec PROGRAM --work FOLDER"""
import argparse
import json
import os
import re
import subprocess
import sys

SPEC = """
model m {{ layers = 3;  hidden = 32;  vocab = 256
  attention {{ heads = 2;  kv_heads = 2;  head_dim = 16 }}
  dense {{ layers = 1;  hidden = 64 }}
  moe {{ experts = 8;  top_k = 2;  hidden = 32;  router = softmax_renorm;  {moe} }} }}
gpu g {{ flops = 50 GFLOPS;  memory = 2 GiB;  hbm = 10 GB/s }}
node n {{ gpu = g;  gpus = 8;  nics = 8;  nvlink = 4 GB/s;  nic = 4 GB/s }}
cluster c {{ nodes = 1;  node = n }}
shape s {{ seq = 40;  micro_batch = 2;  global_batch = 10 }}
train {{ dtype = fp32;  optimizer adamw {{ lr = 1e-3 }} }}
plan {{ {plan} }}
"""
LAYOUTS = ["schedule = af_pipe;  replicas = 1;  stages = 2;  attention_gpus = 2;  ffn_gpus = 1",
           "schedule = megatron;  replicas = 2;  stages = 1;  expert_parallel = 2",
           "schedule = af_pipe;  replicas = 1;  stages = 1;  attention_gpus = 3;  ffn_gpus = 2;  recompute = full"]
TOKENS, TOP_K, EXPERTS, MOE_LAYERS, SEQ = 400, 2, 8, 2, 40

passed = failed = 0


def check(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("failed:", what)


class Bench:
    def __init__(self, args):
        self.moec, self.work = args.moec, os.path.join(args.work, "watch")
        os.makedirs(self.work, exist_ok=True)
        self.text = self.path("text")
        with open(self.text, "wb") as out:
            out.write(b"".join(b"%d bottles, " % i for i in range(3000)))

    def path(self, name):
        return os.path.join(self.work, name)

    def build(self, name, moe, plan):
        with open(self.path(name + ".moespec"), "w", encoding="utf-8") as out:
            out.write(SPEC.format(moe=moe, plan=plan))
        subprocess.run([self.moec, "build", self.path(name + ".moespec"), "-o", self.path(name), "-q"], check=True)
        return self.path(name)

    def train(self, bundle, *words):
        return subprocess.run([f"{bundle}/train", "--data", self.text, "--seed", "3", *words], capture_output=True, text=True, timeout=600,
                              check=False)

    def log(self, bundle, *words):
        name = self.path("log.jsonl")
        done = self.train(bundle, "--log", name, *words)
        check(done.returncode == 0, done.stderr)
        with open(name, encoding="utf-8") as file:
            return [row for row in map(json.loads, file) if "loss" in row]


def load(bench):
    # any layout counts the same tokens: at the first step the weights are the same, later within rounding
    first = None
    for i, plan in enumerate(LAYOUTS):
        rows = bench.log(bench.build(f"plain{i}", "", plan), "--steps", "6", "--log-experts", "1")
        check(len(rows) == 6, f"{plan}: {len(rows)} rows")
        for row in rows:
            cells = row["load"]
            check(len(cells) == MOE_LAYERS and all(len(layer) == EXPERTS and sum(layer) == TOKENS * TOP_K for layer in cells),
                  f"{plan}: step {row['step']}: {cells}")
            over = max(max(layer) / (sum(layer) / EXPERTS) for layer in cells)
            check(abs(row["fullest_expert"] - over) < 1e-4 and row["dropped"] == 0 and "load_dropped" not in row, f"{plan}: {row}")
        first = first or rows[0]["load"]
        check(rows[0]["load"] == first, f"{plan}: {rows[0]['load']}, not {first}")
    # only every third step
    rows = bench.log(bench.path("plain0"), "--steps", "7", "--log-experts", "3")
    check([r["step"] for r in rows if "load" in r] == [3, 6] and all("fullest_expert" in r for r in rows), "every third step")
    # all tokens to two experts, of which each takes a fourth of a sequence's pairs: known to the last one
    limit = SEQ * TOP_K // EXPERTS
    for i, plan in enumerate(LAYOUTS[:2]):
        rows = bench.log(bench.build(f"two{i}", "route_only = 2, 5;  capacity = 1", plan), "--steps", "3", "--log-experts", "1")
        want = [TOKENS if e in (2, 5) else 0 for e in range(EXPERTS)]
        over = [TOKENS - TOKENS // SEQ * limit if e in (2, 5) else 0 for e in range(EXPERTS)]
        for row in rows:
            check(row["load"] == [want] * MOE_LAYERS and row["load_dropped"] == [over] * MOE_LAYERS, f"{plan}: {row}")
            check(row["dropped"] == sum(over) * MOE_LAYERS and row["fullest_expert"] == 4, f"{plan}: {row['dropped']}")
    done = bench.train(bench.path("plain0"), "--steps", "1", "--log-experts", "1")
    check(done.returncode == 2 and "--log-experts has no effect without --log" in done.stderr, done.stderr)


def read_metrics(text):
    """The text format, strictly: HELP, then TYPE, then samples of that name alone; each name once. {name{labels}: value}"""
    values, seen, name, kind = {}, set(), None, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, kind = re.fullmatch(r"# HELP ([a-z_]+) (\S.*)", line).group(1), None
            check(name not in seen, f"{name} twice")
            seen.add(name)
        elif line.startswith("# TYPE "):
            kind = re.fullmatch(rf"# TYPE {name} (gauge|counter)", line).group(1)
        else:
            found = re.fullmatch(rf'({name}(?:\{{[a-z]+="\w+"(?:,[a-z]+="\w+")*\}})?) (NaN|[+-]Inf|[-+.e\d]+)', line)
            check(found and kind and (kind == "counter") == name.endswith("_total") and found.group(1) not in values, line)
            values[found.group(1)] = float(found.group(2))
    return values


def metrics(bench):
    bundle, name = bench.build("metrics", "", LAYOUTS[0]), bench.path("run.prom")
    if os.path.exists(name):
        os.remove(name)
    log = bench.path("log.jsonl")
    # whoever reads while it trains sees a whole file
    run = subprocess.Popen([f"{bundle}/train", "--data", bench.text, "--seed", "3", "--steps", "300", "--log", log, "--metrics", name],
                           stderr=subprocess.DEVNULL)
    reads = 0
    while run.poll() is None:
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            continue
        reads += 1
        check(text.endswith('{layer="2",expert="7"} 0\n'), f"half a file: {text[-80:]!r}")
    check(run.returncode == 0 and reads > 20, f"{run.returncode}, {reads} reads")
    with open(log, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    last, held_out = [r for r in rows if "loss" in r][-1], rows[-1]["eval_loss"]
    with open(name, encoding="utf-8") as file:
        values = read_metrics(file.read())
    for key, want in (("step", 300), ("steps", 300), ("loss", last["loss"]), ("balance_loss", last["balance_loss"]),
                      ("gradient_norm", last["grad_norm"]), ("learning_rate", last["lr"]), ("step_seconds", last["step_ms"] / 1e3),
                      ("held_out_loss", held_out), ("tokens_total", 300 * TOKENS), ("skipped_steps_total", 0), ("dropped_pairs_total", 0),
                      ("fullest_expert_ratio", last["fullest_expert"]), ('info{model="m",schedule="af_pipe"}', 1)):
        got = values.get("moec_" + key, float("nan"))
        check(abs(got - want) <= 1e-4 * abs(want) + 1e-9, f"moec_{key} is {got}, not {want}")
    for l in (1, 2):
        check(sum(values[f'moec_expert_tokens{{layer="{l}",expert="{e}"}}'] for e in range(EXPERTS)) == TOKENS * TOP_K, f"layer {l}")
    check(not [f for f in os.listdir(bench.work) if f.startswith("run.prom.tmp")], "a temporary file is left")
    done = bench.train(bundle, "--steps", "1", "--metrics", bench.path("nowhere/x.prom"))
    check(done.returncode != 0 and "nowhere/x.prom" in done.stderr, done.stderr)
    done = bench.train(bundle, "--steps", "1", "--metrics", name, "--log", name)
    check(done.returncode == 2 and "name the same file" in done.stderr, done.stderr)
    done = bench.train(bundle, "--steps", "1", "--metrics", bench.text)
    check(done.returncode == 2 and "name the same file" in done.stderr, done.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["load", "metrics"])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--work", required=True)
    args = parser.parse_args()
    {"load": load, "metrics": metrics}[args.part](Bench(args))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
