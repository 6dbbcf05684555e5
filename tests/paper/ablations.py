"""The paper's ablations: split of 32 GPUs and of their NICs, top-k and expert parallelism, virtual stages."""
from runs import LIFTED, SHAPES, spec_name
from tables import code, lacks, seconds, table

SPLITS = ("8:16", "10:16", "12:16", "14:16", "16:16", "16:14", "16:12", "16:10", "16:8")
NICS = ("10:22", "12:20", "14:18", "16:16", "18:14", "20:12", "22:10")
TOP_K, EP = (2, 4, 8, 16), (8, 16, 32, 64)


def share(split):
    att, ffn = map(int, split.split(":"))
    return att / (att + ffn)


def swept(runs, spec, arguments):
    """{values of the swept keys, joined: row}"""
    return {":".join(str(v) for v in row["sweep"].values()): row for row in runs.compare(spec, arguments)}


def best_split(rows, figure):
    ran = [s for s in SPLITS if rows[s]["ran"]]
    return max(ran, key=lambda s: rows[s][figure]) if ran else None


def split_part(runs, failures):
    out = ["### 5.1 Split of 32 GPUs, 16 NICs a side", "",
           "DeepSeek-MoE (top 4), one group a side, one replica. Tokens per second and *used* GPU, in brackets per GPU of",
           "the 32; bold is the best of the row. The paper: best at 16:16 for 4Ki and at 16:10 for 16Ki; 16:8 and 8:16",
           "fall back. With the sequence the best share of attention must not fall, by either figure.", ""]
    sweep = ["--sweep", "attention_gpus:ffn_gpus=" + ",".join(SPLITS)]
    for constants in ("published", "fitted"):
        for lifted in (False, True):
            spec = spec_name("ablation_split", constants)
            extra = ["-D", f"MEM={LIFTED}"] if lifted else []
            lines, best = [], {"tokens_per_s_per_gpu": [], "tokens_per_s_per_cluster_gpu": []}
            for shape in SHAPES:
                rows = swept(runs, spec, ["--systems", "af_pipe", "--shape", shape] + extra + sweep)
                first = best_split(rows, "tokens_per_s_per_gpu")
                for figure, list_ in best.items():
                    split = best_split(rows, figure)
                    list_ += [split] if split else []
                cells = [shape[1:-1] + "Ki"]
                for s in SPLITS:
                    r = rows[s]
                    used, cluster = r.get("tokens_per_s_per_gpu"), r.get("tokens_per_s_per_cluster_gpu")
                    text = f"{used:.0f} ({cluster:.0f})" if r["ran"] else "-"
                    cells.append(f"**{text}**" if s == first else text)
                lines.append(cells)
            out += [f"{constants} constants, {f'memory lifted to {LIFTED} GB' if lifted else '80 GB'}:", ""]
            out += table(("A:F",) + SPLITS, lines)
            for figure, name in (("tokens_per_s_per_gpu", "used GPU"), ("tokens_per_s_per_cluster_gpu", "cluster GPU")):
                falls = any(share(b) < share(a) for a, b in zip(best[figure], best[figure][1:]))
                out.append(f"- best per {name}: {', '.join(best[figure])}" + (": **falls**" if falls else ""))
                if falls:
                    failures.append(f"split, {constants}, lifted {lifted}, per {name}: {best[figure]}")
            out.append("")
    return out + code("moec compare specs/paper/ablation_split.moespec --systems af_pipe " + " ".join(sweep))


def nics_part(runs):
    out = ["### 5.2 NICs: symmetric against adaptive", "",
           "16 + 16 GPUs as above, 32 NICs; step in s.", ""]
    sweep = ["--sweep", "attention_nics:ffn_nics=" + ",".join(NICS)]
    for constants in ("published", "fitted"):
        lines = []
        for shape in SHAPES:
            arguments = ["--systems", "af_pipe", "--shape", shape] + sweep
            rows = swept(runs, spec_name("ablation_split", constants), arguments)
            ran = {n: rows[n]["step_ns"] for n in NICS if rows[n]["ran"]}
            best = min(ran, key=ran.get) if ran else "-"
            cells = [f"{constants} {shape[1:-1]}Ki"] + [seconds(ran[n]) if n in ran else "-" for n in NICS]
            gain = f"{best}, {100 * (ran['16:16'] / ran[best] - 1):.1f} % faster" if "16:16" in ran else best
            lines.append(cells + [gain])
        out += table(("A:F NICs",) + NICS + ("best",), lines)
    return out + code("moec compare specs/paper/ablation_split.moespec --systems af_pipe " + " ".join(sweep))


def top_k_part(runs):
    out = ["### 5.3 Top-k and expert parallelism", "",
           "DeepSeek-MoE with 64 experts at 8Ki on 128 GPUs, memory lifted: af_pipe faster than megatron, whose experts",
           "are divided over EP GPUs with flat copies (paper: 1.08 to 1.92, the most at top 16 and large EP).", ""]
    seen = {"once per node": [], "flat copies": []}
    for constants in ("published", "fitted"):
        spec, base = spec_name("deepseek_moe", constants), ["--shape", "s8k", "-D", f"MEM={LIFTED}"]
        keys = ["--sweep", "top_k=" + ",".join(map(str, TOP_K))]
        mine = swept(runs, spec, base + ["--systems", "af_pipe"] + keys)
        theirs = swept(runs, spec, base + ["--systems", "megatron"] + keys +
                       ["--sweep", "expert_parallel=" + ",".join(map(str, EP))])
        flat = swept(runs, spec, base + ["--systems", "af_pipe", "--sweep", "dedup=flat"] + keys)
        lines = []
        for k in TOP_K:
            for name, row in (("once per node", mine[str(k)]), ("flat copies", flat[f"flat:{k}"])):
                cells = [f"{constants}, top {k}, {name}"]
                for ep in EP:
                    theirs_ran = theirs[f"{k}:{ep}"]["ran"] and row["ran"]
                    x = theirs[f"{k}:{ep}"]["step_ns"] / row["step_ns"] if theirs_ran else None
                    seen[name] += [x] if x else []
                    cells.append(f"{x:.2f}" if x else "-")
                lines.append(cells + [row.get("settings", "-")])
        out += table(("af_pipe",) + tuple(f"EP {ep}" for ep in EP) + ("its settings",), lines)
    for name, x in seen.items():
        if x:
            inside = sum(1.08 <= v <= 1.92 for v in x)
            out.append(f"- {name}: from {min(x):.2f} to {max(x):.2f}, {inside} of {len(x)} in the paper's range")
    command = f"moec compare specs/paper/deepseek_moe.moespec --shape s8k -D MEM={LIFTED} --systems "
    return out + [""] + code(command + "megatron --sweep top_k=2,4,8,16 --sweep expert_parallel=8,16,32,64",
                             command + "af_pipe --sweep top_k=2,4,8,16",
                             command + "af_pipe --sweep dedup=flat --sweep top_k=2,4,8,16")


def stages_part(runs):
    out = ["### 5.4 Virtual stages", "",
           "GPT-OSS-120B, 36 layers, at 4Ki. af_pipe with 8 + 8 GPUs in each pair of groups: p pairs a pipeline, so",
           "v = 36 / p layers per group, and 8 / p pipelines; and megatron on 2 pipelines of 4 ranks with v runs of layers",
           "on each. Tokens per second and GPU (paper: more of them help, up to 16; then memory ends).", ""]
    shapes = [(8 // p, p, 8, 8) for p in (8, 4, 2, 1)]
    sweep = ["--sweep", "replicas:stages:attention_gpus:ffn_gpus=" + ",".join(":".join(map(str, s)) for s in shapes)]
    for constants in ("published", "fitted"):
        spec, lines = spec_name("gpt_oss_120b", constants), []
        for lifted in (False, True):
            extra = ["-D", f"MEM={LIFTED}"] if lifted else []
            rows = swept(runs, spec, ["--shape", "s4k", "--systems", "af_pipe"] + extra + sweep)
            cells = ["af_pipe" + (", memory lifted" if lifted else "")]
            for s in shapes:
                r = rows[":".join(map(str, s))]
                cells.append(f"{r['tokens_per_s_per_gpu']:.0f}" if r["ran"] else f"lacks {lacks(r)}")
            lines.append(cells)
        out += table((constants,) + tuple(f"v {36 / s[1]:g}, p {s[1]}" for s in shapes), lines)
        counts = (1, 3, 9)
        rows = swept(runs, spec, ["--shape", "s4k", "--systems", "megatron", "--sweep",
                                  "stages:virtual_stages=" + ",".join(f"4:{v}" for v in counts)])
        out += table(("megatron",) + tuple(f"v {v}" for v in counts),
                     [["tokens/s/GPU"] + [f"{rows[f'4:{v}']['tokens_per_s_per_gpu']:.0f}" if rows[f"4:{v}"]["ran"]
                                          else f"lacks {lacks(rows[f'4:{v}'])}" for v in counts]])
    return out + code("moec compare specs/paper/gpt_oss_120b.moespec --shape s4k --systems af_pipe " + " ".join(sweep),
                      "moec compare specs/paper/gpt_oss_120b.moespec --shape s4k --systems megatron --sweep "
                      "stages:virtual_stages=4:1,4:3,4:9")


def part(runs, failures):
    out = ["## 5. Ablations", ""]
    return out + split_part(runs, failures) + nics_part(runs) + top_k_part(runs) + stages_part(runs)
