"""Runs of `moec compare` over the paper's specs, each kept as a file so that tables can be made again."""
import hashlib
import json
import os
import subprocess
import sys
import time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PAPER = os.path.join(ROOT, "specs", "paper")
MODELS = ("deepseek_moe", "gpt_oss_120b", "qwen3_235b")
SHAPES = ("s4k", "s8k", "s16k", "s32k")
CONSTANTS = ("published", "fitted")
COLOCATED = ("megatron", "megatron_overlap", "tutel", "comet", "dualpipe", "dualpipev")
PUBLISHED_SYSTEMS = ("megatron", "tutel", "comet", "dualpipe")  # what the paper compares with
LIFTED = 1000  # GB per GPU in the runs without the limit


def spec_name(model, constants):
    return model + ("_fitted" if constants == "fitted" else "") + ".moespec"


def moec_command(spec, arguments):
    return ["moec", "compare", os.path.join("specs", "paper", spec)] + arguments + ["--json"]


def run_json(command, defines=None):
    """What a command of moec prints, with its -D."""
    command = command + [word for name, value in (defines or {}).items() for word in ("-D", f"{name}={value}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def digest(moec):
    """Of all that a run depends on: the compiler and the specs."""
    sums = hashlib.sha256(open(moec, "rb").read())
    for folder, _, names in sorted(os.walk(os.path.join(ROOT, "specs"))):
        for name in sorted(n for n in names if n.endswith(".moespec")):
            sums.update(open(os.path.join(folder, name), "rb").read())
    return sums.hexdigest()[:12]


class Runs:
    def __init__(self, moec, work):
        self.moec, self.work = os.path.abspath(moec), os.path.join(work, digest(moec))
        os.makedirs(self.work, exist_ok=True)

    def compare(self, spec, arguments):
        """Rows of one comparison."""
        command = moec_command(spec, arguments)
        key = hashlib.sha256(" ".join(command).encode()).hexdigest()[:16]
        path = os.path.join(self.work, f"{spec.removesuffix('.moespec')}_{key}.json")
        if not os.path.exists(path):
            begin = time.time()
            done = subprocess.run([self.moec, "compare", "-q"] + command[2:], cwd=ROOT, capture_output=True, text=True,
                                  check=False)
            if done.returncode not in (0, 3) or not done.stdout:
                raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
            with open(path + ".tmp", "w", encoding="utf-8") as out:
                out.write(done.stdout)
            os.replace(path + ".tmp", path)
            print(f"{time.time() - begin:6.1f} s  {' '.join(command)}", file=sys.stderr, flush=True)
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        for row in rows:
            if row["ran"] and row["peak_memory"] > row["memory_limit"]:  # no result, whatever the compiler says
                over = (row["peak_memory"] - row["memory_limit"]) / 2 ** 30
                row.update(ran=False, reason=f"its schedule overruns memory ({over:.3g} GiB too little)")
        return rows

    def point(self, model, constants, shape, lifted=False, dedup=None, systems=None):
        """{system: row} of one of the twelve points."""
        arguments = ["--shape", shape]
        arguments += ["-D", f"MEM={LIFTED}"] if lifted else []
        arguments += ["--systems", ",".join(systems)] if systems else []
        arguments += ["--sweep", f"colocated_dedup={dedup}"] if dedup else []
        return {row["system"]: row for row in self.compare(spec_name(model, constants), arguments)}
