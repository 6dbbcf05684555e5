#!/usr/bin/env python3
"""Help, man page, completion and syntax files, which moec writes from its tables: they know all that the tables know.
   written.py help|man|bash|vim|textmate --moec PROGRAM --source FOLDER"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

passed = failed = 0


def check(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print("failed:", what)


def run(*words, **kwargs):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **kwargs)


class Tables:
    """verbs.def, options.def and keys.def as a reader of their text sees them."""

    def __init__(self, source):
        def text(name):
            with open(os.path.join(source, name), encoding="utf-8") as file:
                return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        self.verbs = re.findall(r"^VERB\(\w+,\s*(\w+)", text("codegen/verbs.def"), re.M)
        self.systems = re.findall(r'^SYSTEM\(\w+,\s*"(\w+)"', text("lang/systems.def"), re.M)
        self.units = [u for u in re.findall(r'^UNIT\("([^"]+)"', text("lang/units.def"), re.M)]
        self.options = {}  # name -> verbs
        options = text("codegen/options.def")
        macros = {name: set(re.findall(r"ON\((\w+)\)", body)) for name, body in re.findall(r"^#define (\w+) +(.*)$", options, re.M)}
        macros["PLANS"] |= macros["BUILDS"]
        for row in options.split("\nOPTION(")[1:]:
            bare = re.sub(r'"([^"\\]|\\.)*"', "", row)  # without its strings
            verbs = set(re.findall(r"ON\((\w+)\)", bare))
            for macro, on in macros.items():
                verbs |= on if re.search(rf"\b{macro}\b", bare.split("#undef")[0]) else set()
            self.options[row.split('"')[1]] = {v.lower() for v in verbs}
        keys = text("lang/keys.def")
        self.blocks = re.findall(r'^BLOCK\(\w+,\s*\w+,\s*"(\w+)"', keys, re.M)
        self.keys = re.findall(r"^KEY\(\w+,\s*(\w+)", keys, re.M)
        self.values = [w for row in re.findall(r"^WORDS\(\w+,(.*)\)", keys, re.M) for w in re.findall(r'"(\w+)"', row)]


def help_part(moec, tables):
    everything = run(moec, "--help")
    check(everything.returncode == 0 and everything.stdout == run(moec, "help").stdout, "moec help is moec --help")
    for verb in tables.verbs:
        text = run(moec, verb, "--help")
        check(text.returncode == 0 and text.stdout.startswith(f"usage: moec {verb} ") and text.stderr == "", f"help of {verb}")
        check(text.stdout == run(moec, "help", verb).stdout == run(moec, "-h", verb).stdout, f"moec help {verb} differs")
        check(re.search(rf"^  {verb} +\w", everything.stdout, re.M), f"{verb} is not among the verbs")
        listed = set(re.findall(r"^ +(?:-\w, )?--([\w-]+)", text.stdout, re.M)) - {"help"}
        want = {name for name, verbs in tables.options.items() if verb in verbs}
        check(listed == want, f"{verb}: help lists {sorted(listed)}, the table has {sorted(want)}")
        check(all(len(line) <= 118 for line in text.stdout.splitlines()), f"{verb}: long lines")
    wrong = run(moec, "help", "plam")
    check(wrong.returncode == 2 and "did you mean 'plan'" in wrong.stderr and not wrong.stdout, f"help plam: {wrong.stderr}")
    check(run(moec, "help", "--as", "html").returncode == 2, "help --as html")
    check(run(moec, "help", "plan", "--as", "man").returncode == 2, "help plan --as man")
    check(re.fullmatch(r"moec \d+\.\d+\.\d+\n", run(moec, "--version").stdout), "--version")


def man_part(moec, tables):
    page = run(moec, "help", "--as", "man").stdout
    check(page.startswith(".TH MOEC 1 "), page[:40])
    if not shutil.which("groff"):
        print("no groff: the page is not set")
        return
    done = run("groff", "-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=118n", input=page)
    check(done.returncode == 0 and done.stderr == "", f"groff: {done.stderr}")
    text = re.sub(r"-\n +", "-", done.stdout)
    for section in ["NAME", "SYNOPSIS", "VERBS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"]:
        check(re.search(rf"^{section}$", text, re.M), f"no section {section}")
    for verb in tables.verbs:
        check(re.search(rf"^ +moec {verb}\b", text, re.M), f"man: no {verb}")
    for name in tables.options:
        check(re.search(rf"^ +(-\w, )?--{name}\b", text, re.M), f"man: no --{name}")


def complete(script, line, cwd):
    """What bash offers at the end of the line, split into words as readline does."""
    words = re.findall(r"=|[^ =]+", line) + ([""] if line.endswith(" ") else [])
    return run("bash", "-c", f'. "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
               'f=_moec; [[ ${1##*/} == train ]] && f=_moec_train; $f "$1"; printf "%s\\n" "${COMPREPLY[@]}"', "-", *words,
               cwd=cwd).stdout.split()


def bash_part(moec, tables):
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "moec.bash")
        with open(script, "w", encoding="utf-8") as out:
            out.write(run(moec, "help", "--as", "bash").stdout)
        done = run("bash", "-n", script)
        check(done.returncode == 0 and not done.stderr, done.stderr)
        if shutil.which("shellcheck"):
            done = run("shellcheck", "-s", "bash", script)
            check(done.returncode == 0, done.stdout)
        with open(os.path.join(folder, "my.moespec"), "w", encoding="utf-8") as out:
            out.write("let SEQ = 4\nshape short { seq = SEQ }\n  shape long { seq = 9 }\n")
        open(os.path.join(folder, "notes.txt"), "w", encoding="utf-8").close()
        os.mkdir(os.path.join(folder, "sub"))

        def offers(line, want):
            got = complete(script, line, folder)
            check(sorted(got) == sorted(want), f"{line!r} offers {got}, not {want}")
        offers("moec ", tables.verbs)
        offers("moec ca", ["calibrate"])
        offers("moec help sch", ["schedule"])
        for verb in tables.verbs:
            offers(f"moec {verb} --", ["--help"] + [f"--{n}" for n, verbs in tables.options.items() if verb in verbs])
        systems = tables.systems
        offers("moec plan my.moespec --system ", ["auto"] + systems)
        offers("moec plan my.moespec --system=", ["auto"] + systems)
        offers("moec plan my.moespec --system=tu", ["tutel"])
        offers("moec compare my.moespec --systems tutel,com", ["tutel,comet"])
        offers("moec build my.moespec --target e", ["emu"])
        offers("moec check ", ["my.moespec", "sub"])
        offers("moec report ", ["sub"])
        offers("moec compare my.moespec --html n", ["notes.txt"])
        offers("moec tune my.moespec --work ", ["sub"])
        offers("moec plan my.moespec --shape ", ["short", "long"])
        offers("moec plan my.moespec -D ", ["SEQ="])
        check("bash" in complete(script, "moec build my.moespec --cc bas", folder), "--cc completes no command")
        # a program of moec tells its options; another `train` is not run
        train = os.path.join(folder, "train")
        with open(train, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\n: > ran\necho '  --steps N   steps'\necho '  --save-every N'\n")
        os.chmod(train, 0o755)
        offers("./train --s", [])
        check(not os.path.exists(os.path.join(folder, "ran")), "completion ran a stranger's program")
        open(os.path.join(folder, "moec-manifest.txt"), "w", encoding="utf-8").close()
        offers("./train --s", ["--steps", "--save-every"])


# what the editors should make of a line: the word and the class of each of its letters
SAMPLES = [("use \"a b\"", "use", "Statement"), ("let S = 1", "let", "Statement"), ("tied = true", "true", "Boolean"),
           ("x = 1 # layers = 2", "layers", "Comment"), ("use \"layers = 2\"", "layers", "String"), ("seq = 4Ki", "4Ki", "Number"),
           ("nic = 25 GB/s", "25 GB/s", "Number"), ("lr = 3e-3", "3e-3", "Number"), ("a = L2", "2", None), ("x = layers2", "layers", None)]


def samples(tables):
    out = list(SAMPLES)
    out += [(f"  {k} = 3", k, "Key") for k in tables.keys]
    out += [(f"{b} {{ x = 3 }}", b, "Block") for b in tables.blocks] + [(f"{b} name {{", b, "Block") for b in tables.blocks]
    out += [(f"x = {v}", v, "Value") for v in tables.values]
    return out + [(f"x = 25 {u}", f"25 {u}", "Number") for u in tables.units if "\\" not in u]


def vim_part(moec, tables):
    text = run(moec, "help", "--as", "vim").stdout
    check("syn match moespecKey" in text, "no keys")
    if not shutil.which("vim") or "+syntax" not in run("vim", "--version").stdout:
        print("no Vim with syntax: the file is not loaded")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = samples(tables)
        with open(os.path.join(folder, "moespec.vim"), "w", encoding="utf-8") as out:
            out.write(text)
        with open(os.path.join(folder, "t.moespec"), "w", encoding="utf-8") as out:
            out.writelines(line + "\n" for line, _, _ in rows)
        ask = "\n".join(f"call add(r, map(range({line.index(word) + 1}, {line.index(word) + len(word)}), "
                        f"'synIDattr(synID({i + 1}, v:val, 1), \"name\")'))" for i, (line, word, _) in enumerate(rows))
        with open(os.path.join(folder, "ask.vim"), "w", encoding="utf-8") as out:
            out.write(f"syntax on\nsource {folder}/moespec.vim\nlet r = []\n{ask}\n"
                      f"call writefile([json_encode(r)], '{folder}/out')\nqa!\n")
        done = run("vim", "-N", "-u", "NONE", "-i", "NONE", "-es", "-S", f"{folder}/ask.vim", f"{folder}/t.moespec", stdin=subprocess.DEVNULL)
        check(os.path.exists(f"{folder}/out"), f"vim: {done.returncode} {done.stdout}{done.stderr}")
        with open(f"{folder}/out", encoding="utf-8") as file:
            for (line, word, want), got in zip(rows, json.load(file)):
                name = f"moespec{want}" if want else ""
                check(set(got) == {name}, f"vim: {word!r} of {line!r} is {got}, not {name!r}")


SCOPES = {"Statement": "keyword.control", "Boolean": "constant.language.boolean", "Comment": "comment.line", "String": "string.quoted",
          "Number": "constant.numeric", "Key": "variable.parameter", "Block": "storage.type", "Value": "constant.language.value"}


def textmate_part(moec, tables, source):
    grammar = json.loads(run(moec, "help", "--as", "textmate").stdout)
    rules = [(rule["name"], re.compile(rule["match"])) for rule in grammar["patterns"]]

    def scope_at(line, at):
        """As editors match: from left to right the first rule that matches earliest."""
        begin = 0
        while begin < len(line):
            found = [(m.start(), i, m, name) for i, (name, rule) in enumerate(rules) for m in [rule.search(line, begin)] if m]
            if not found:
                return ""
            first, _, match, name = min(found, key=lambda f: f[:2])
            if first <= at < match.end():
                return name
            if first > at:
                return ""
            begin = max(match.end(), begin + 1)
        return ""
    for line, word, want in samples(tables):
        first = line.index(word)
        got = {scope_at(line, at) for at in range(first, first + len(word))}
        good = all(g.startswith(SCOPES[want]) for g in got) if want else got == {""}
        check(good, f"textmate: {word!r} of {line!r} is {got}, not {want}")
    for name in glob.glob(os.path.join(source, "specs", "**", "*.moespec"), recursive=True):
        with open(name, encoding="utf-8") as file:
            for line in file:
                for key in re.findall(r"(?<![\w#])(\w+) *= ", line.split("#")[0]):
                    if key in tables.keys:
                        check(scope_at(line, line.index(key)).startswith("variable") or f"let {key}" in line or line.count(key) > 1,
                              f"{name}: {line}")
    folder = os.path.join(source, "lang", "editors", "vscode")
    with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
        package = json.load(file)
    with open(os.path.join(folder, "language-configuration.json"), encoding="utf-8") as file:
        json.load(file)
    check(package["contributes"]["grammars"][0]["scopeName"] == grammar["scopeName"], "the package names another grammar")
    check(f"moec {package['version']}\n" == run(moec, "--version").stdout, "the package has another version")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["help", "man", "bash", "vim", "textmate"])
    parser.add_argument("--moec", required=True)
    parser.add_argument("--source", required=True)
    args = parser.parse_args()
    tables = Tables(args.source)
    check(len(tables.verbs) >= 12 and len(tables.options) >= 28 and len(tables.keys) > 80, "the tables are not read")
    if args.part == "textmate":
        textmate_part(args.moec, tables, args.source)
    else:
        {"help": help_part, "man": man_part, "bash": bash_part, "vim": vim_part}[args.part](args.moec, tables)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
