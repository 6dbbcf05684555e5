"""What `train`, with the fake bundle, does with files that are there already: its inputs, leftovers, checkpoints.

usage: files_test.py PROGRAM CASE
"""

import fcntl
import os
import re
import resource
import struct
import subprocess

from runtime_test import PROGRAM, check, environment, errors_of, run_case, train


def case_guards():
    """What is read is not written to; what killed runs have left is removed; memory of saving is told."""
    data = ["--data", DATA, "--holdout", "0", "--steps", "1"]
    os.mkdir("hf")
    for name in ("model.safetensors", "config.json"):
        with open("hf/" + name, "wb") as f:
            f.write(struct.pack("<Q", 2) + b"{}")
    os.symlink("hf/model.safetensors", "alias")
    code, err = train("a=1 f=1", *data, "--init", "hf")
    check(code == 1 and "does not fit this model" in err, err)
    code, err = train("a=1 f=1", *data, "--save", "ck")
    check(code == 0, err)
    for path in ("ck", "ck/step-000001"):
        code, err = train("a=1 f=1", *data, "--init", path)
        check(code == 1 and len(errors_of(err)) == 1 and "--resume goes on from it" in err, err)
    before = {x: open(f"ck/step-000001/{x}", "rb").read() for x in os.listdir("ck/step-000001")}
    for flag in ("--log", "--dump-weights"):
        for name in before:
            code, err = train("a=1 f=1", *data, "--resume", "ck", flag, f"ck/step-000001/{name}")
            check(code == 1 and len(errors_of(err)) == 1 and f"would replace a file of --resume ck/step-000001" in err, err)
    check(before == {x: open(f"ck/step-000001/{x}", "rb").read() for x in os.listdir("ck/step-000001")}, "it was written to")

    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [f"{x}.tmp{pid}" for x in ("w", "x/w", "other") for pid in (dead.pid, os.getpid(), "1x", "")]
    os.mkdir("x")
    for name in left:
        open(name, "w").close()
    held = open(f"x/w.tmp{dead.pid}")
    fcntl.flock(held, fcntl.LOCK_EX)
    for path in ("w", "x/w"):
        code, err = train("a=1 f=1", *data, "--dump-weights", path)
        check(code == 0 and (f"removed w.tmp{dead.pid}, which" in err) == (path == "w"), err)
    check([x for x in left if not os.path.exists(x)] == [f"w.tmp{dead.pid}"], "left are " + str([x for x in left if os.path.exists(x)]))

    for flag in ("--dump-logits", "--dump-grads", "--dump-weights"):  # found out before the training, by the launcher
        code, err = train("a=1 f=1", *data, flag, "large", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8)))
        check(code == 1 and len(errors_of(err)) == 1 and not os.path.exists("large"), err)
        check("File too large" in err, err)

    rows = {}
    for more in ([], ["--save", "new"]):
        out = subprocess.run([PROGRAM, "--memory", *more], env=environment("a=2 f=2"), stdout=subprocess.PIPE, text=True).stdout
        rows[bool(more)] = [line.split() for line in out.splitlines()]
    check(rows[True][0][-2] == "saving" and not os.path.exists("new"), str(rows))
    for plain, saving in zip(rows[False][1:], rows[True][1:]):
        copy = int(saving[-2])
        check(0 < copy <= int(plain[4]) and int(saving[-1]) == int(plain[-1]) + copy, f"{plain} {saving}")


def case_restart():
    """A command that saves into the folder that it resumes from can be run again and again; no other may begin anew."""
    data = ["--data", DATA, "--holdout", "0"]
    for folder in ("none", "empty"):
        if folder == "empty":
            os.mkdir(folder)
        for steps, said in ((2, f"{folder} holds no checkpoint yet: beginning with step 1"), (4, "going on after step 2")):
            code, err = train("a=1 f=1" + (" done=2" if steps == 4 else ""), *data, "--steps", str(steps), "--save", folder + "/",
                              "--resume", folder)
            check(code == 0 and said in err, err)
    # however it is spelled, also before it is there
    here = os.getcwd()
    for save, resume in (("./un//", "un"), (here + "/deux", "deux/."), ("empty/../trois", "./trois"), ("q/r", "./q//r/")):
        code, err = train("a=1 f=1", *data, "--steps", "2", "--save", save, "--resume", resume)
        check("holds no checkpoint yet: beginning with step 1" in err or "cannot" in err and save == "q/r", f"{save} {resume}: {err}")
    code, err = train("a=1 f=1", *data, "--steps", "2", "--log", "./neu", "--dump-weights", "neu")
    check(code == 2 and "--log and --dump-weights name the same file" in err and not os.path.exists("neu"), err)
    for more in ([], ["--save", "elsewhere"]):
        code, err = train("a=1 f=1", *data, "--steps", "2", "--resume", "nothing", *more)
        check(code == 1 and "cannot resume from nothing: No such file" in err, err)
    code, err = train("a=1 f=1", *data, "--steps", "2", "--resume", "empty", "--init", "x", "--save", "elsewhere")
    check(code == 2 and "--init and --resume say different things" in err, err)
    os.mkdir("thesis")
    open("thesis/chapter", "w").close()
    code, err = train("a=1 f=1", *data, "--steps", "2", "--resume", "thesis", "--save", "thesis")
    check(code == 1 and "holds no checkpoint, but chapter" in err, err)

    # options that the checkpoint keeps hold again; others are told
    mask = ["--mask-token", "7", "--mask-after=9", "--format", "bytes"]
    code, err = train("a=1 f=1", *data, "--steps", "2", "--save", "kept", *mask)
    check(code == 0, err)
    code, err = train("a=1 f=1 done=2", "--data", DATA, "--steps", "3", "--resume", "kept", "--save", "again")
    for said in ("--mask-token 7, as in", "--mask-after 9, as in", "--format bytes, as in", "--holdout 0, as in"):
        check(code == 0 and said in err and "loss 1.0000" in err, f"{said}: {err}")
    code, err = train("a=1 f=1 done=3", *data, "--steps", "4", "--resume", "again", "--mask-token", "none", "--mask-after", "10")
    for said in ("--mask-token none; again/step-000003 was trained with 7", "--mask-after 10; again/step-000003 was trained with 9"):
        check(code == 0 and said in err, f"{said}: {err}")
    code, err = train("a=1 f=1 done=3", *data, "--steps", "4", "--resume", "again", "--holdout", "0.5")
    check(code == 1 and "cannot go on with the same tokens" in err, err)
    # the same sizes, another content
    whole = open(DATA, "rb").read()
    other = os.path.join(os.getcwd(), "other")
    for at, code_wanted in ((0, 1), (len(whole) - 1, 1)):
        changed = bytearray(whole)
        changed[at] ^= 1
        open(other, "wb").write(changed)
        code, err = train("a=1 f=1 done=3", "--data", other, "--steps", "4", "--resume", "again")
        check(code == code_wanted and len(errors_of(err)) == 1 and re.search("CRC-32 of .* was [0-9a-f]{8} and is [0-9a-f]{8}", err), err)


run_case(globals())
