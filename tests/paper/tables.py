"""Tables of the results page over the twelve points."""
import contextlib
import io
import os

import bound
import profile_shares
from costs import Costs
from runs import COLOCATED, LIFTED, MODELS, PAPER, PUBLISHED_SYSTEMS, SHAPES, moec_command, spec_name

SYSTEMS = ("af_pipe", "afd") + COLOCATED
# speedups of af_pipe that the paper reports
BANDS = {"megatron": (1.59, 1.81), "tutel": (1.2, 1.5), "comet": (1.2, 1.5), "dualpipe": (1.05, 1.13)}
BEST_BAND = 1.34  # over the best system that overlaps, at most
EXPOSED_DOWN = {"tutel": 0.88, "comet": 0.75, "dualpipe": 0.45}  # DeepSeek-MoE at 8Ki
TARGET = 0.97


def seconds(ns):
    return f"{ns / 1e9:.3g}" if ns < 1e11 else f"{ns / 1e9:.1f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(head))) + "|"]
    return lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows] + [""]


def code(*lines):
    return ["```sh"] + list(lines) + ["```", ""]


def short(model):
    return {"deepseek_moe": "DeepSeek-MoE", "gpt_oss_120b": "GPT-OSS-120B", "qwen3_235b": "Qwen3-235B"}[model]


def label(model, shape):
    return f"{short(model)} {shape[1:-1]}Ki"


def gib(row):
    return row["peak_memory"] / 2 ** 30


def lacks(row):
    """ "6.0 GiB" from the reason why a system cannot run."""
    reason = row.get("reason", "")
    return reason[reason.rfind("(") + 1:].split(" too little")[0] if "too little" in reason else "no plan"


# ---- profile ----


def profile_part(moec):
    out = ["## 1. Profile", "",
           "Shares of the time of one Qwen3 layer, forward and backward, on 8 nodes with experts over 16 GPUs, flat copies,",
           "nothing overlapped; constants of `specs/hardware/h800_fitted.moespec`, whose head says how they were fitted. How",
           "communication rises from one node to eight is not fitted and not asserted; of what the paper's 22 % and 78 % are",
           "shares is not clear, most likely of a forward pass.", "",
           "```"]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        profile_shares.show(moec)
    out += text.getvalue().rstrip().split("\n")
    return out + ["```", ""] + code("python3 tests/paper/profile_shares.py --moec build/moec",
                                    "python3 tests/paper/profile_shares.py --moec build/moec --fit")


# ---- the twelve points ----


def steps_table(points):
    """Step in seconds per system, and what does not fit."""
    rows = []
    for (model, shape), row in points.items():
        cells = [label(model, shape)]
        for system in SYSTEMS:
            r = row[system]
            cells.append(f"{seconds(r['step_ns'])}" if r["ran"] else f"lacks {lacks(r)}")
        rows.append(cells)
    return table(("step, s",) + SYSTEMS, rows)


def speedup(row, system):
    return row[system]["step_ns"] / row["af_pipe"]["step_ns"] if row[system]["ran"] and row["af_pipe"]["ran"] else None


def in_band(x, band):
    return "in" if band[0] <= x <= band[1] else "below" if x < band[0] else "above"


def speedup_table(points, limits):
    rows = []
    for (model, shape), row in points.items():
        cells = [label(model, shape)]
        for system in PUBLISHED_SYSTEMS + ("megatron_overlap",):
            x = speedup(row, system)
            cells.append("-" if x is None else f"{x:.2f}" + (f" {in_band(x, BANDS[system])}" if system in BANDS else ""))
        others = [row[s]["step_ns"] for s in ("tutel", "comet", "dualpipe") if row[s]["ran"]]
        cells.append(f"{min(others) / row['af_pipe']['step_ns']:.2f}" if others and row["af_pipe"]["ran"] else "-")
        most = limits[model, shape][1].seconds  # of the bound
        cells.append(f"{row['megatron']['step_ns'] / 1e9 / most:.2f}" if row["megatron"]["ran"] else "-")
        rows.append(cells)
    head = ("af_pipe faster than", "megatron (1.59-1.81)", "tutel (1.2-1.5)", "comet (1.2-1.5)", "dualpipe (1.05-1.13)",
            "megatron_overlap", "best of tutel, comet, dualpipe (up to 1.34)", "at the bound, megatron")
    return table(head, rows)


def exposed_table(points):
    rows = []
    for (model, shape), row in points.items():
        cells = [label(model, shape)]
        for system in SYSTEMS:
            r = row[system]
            part = 100 * r["exposed_comm_ns"] / r["step_ns"] if r["ran"] else 0
            cells.append(f"{seconds(r['exposed_comm_ns'])} ({part:.0f} %)" if r["ran"] else "-")
        rows.append(cells)
    return table(("exposed, s",) + SYSTEMS, rows)


def exposed_line(points, what):
    row = points.get(("deepseek_moe", "s8k"))
    if not row or not row["af_pipe"]["ran"]:
        return []
    mine = row["af_pipe"]["exposed_comm_ns"]
    parts = []
    for system, down in EXPOSED_DOWN.items():
        if row[system]["ran"]:
            change = 100 * (mine / row[system]["exposed_comm_ns"] - 1)
            parts.append(f"{change:+.0f} % against {system} (paper -{100 * down:.0f} %)")
    return [f"Exposed communication of DeepSeek-MoE at 8Ki, {what}: " + ", ".join(parts) + ".", ""]


def travel_line(points):
    """How tokens travel where the system chose."""
    parts = []
    for system in ("af_pipe", "afd"):
        where = {}
        for p, row in points.items():
            if row[system]["ran"]:
                where.setdefault(row[system]["dedup"], []).append(label(*p))
        most = sorted(where, key=lambda dedup: -len(where[dedup]))
        names = {"node": "once per node", "rank": "once per rank", "flat": "once per expert"}
        if most:
            rest = "".join(f", {names[d]} for {', '.join(where[d])}" for d in most[1:])
            parts.append(f"of {system} {names[most[0]]}" + (" everywhere" if not rest else rest))
    return ["Tokens travel: " + "; ".join(parts) + ".", ""] if parts else []


def memory_table(points, limits):
    rows = []
    for (model, shape), row in points.items():
        used = [f"{gib(row[s]):.0f}" if row[s]["ran"] else f"lacks {lacks(row[s])}" for s in SYSTEMS]
        costs = limits[model, shape][0]
        rows.append([label(model, shape), f"{18 * costs.params() / costs.gpus / 2 ** 30:.0f}"] + used)
    head = ("GiB on the fullest GPU", "weights, gradients, optimizer, spread evenly")
    return table(head + SYSTEMS, rows)


def settings_list(points):
    out = []
    for (model, shape), row in points.items():
        out.append(f"- {label(model, shape)}: " +
                   "; ".join(f"{s} {row[s]['settings']}" for s in SYSTEMS if row[s]["ran"]) + ".")
    return out + [""]


# ---- the bound ----


def limit_of(model, constants, shape, defines=None):
    costs = Costs(os.path.join(PAPER, spec_name(model, constants)), shape, defines)
    hidden, linked = bound.bounds(costs)
    return costs, hidden[0], linked[0]


def split_text(split):
    text = f"{split.replicas} x A {split.p_att}x{split.att} F {split.p_ffn}x{split.ffn}"
    return text + ("" if split.recompute == "none" else f", {split.recompute}")


def terms_of(row, costs):
    """Seconds: even spread; what the busiest group has above it; fill, drain and order; messages that are waited for."""
    step = row["step_ns"] / 1e9
    even = bound.perfect(costs)
    busiest = max(g["compute_ns"] for g in row["groups"]) / 1e9
    waited = row["exposed_step_ns"] / 1e9
    return even, busiest - even, step - busiest - waited, waited


def bound_table(points, limits):
    rows, notes = [], []
    for (model, shape), row in points.items():
        costs, hidden, linked = limits[model, shape]
        b, r = hidden.terms, row["af_pipe"]
        even = bound.perfect(costs)
        cells = [label(model, shape), f"{even:.3g}", f"{b['busy'] - even:+.2g}", f"{b['fill']:.2g}",
                 f"{max(0, b['flight'] - b['busy'] - b['fill']):.2g}", f"{b['optimizer']:.2g}", f"**{hidden.seconds:.3g}**",
                 split_text(hidden.split), f"{linked.linked:.3g}", split_text(linked.split)]
        if not r["ran"]:
            rows.append(cells + ["lacks " + lacks(r), "-", "-", "-", "-", "-", "-"])
            continue
        even, uneven, fill, waited = terms_of(r, costs)
        reached, of_links = hidden.seconds / (r["step_ns"] / 1e9), linked.linked / (r["step_ns"] / 1e9)
        rows.append(cells + [f"{seconds(r['step_ns'])}", f"{uneven:+.2g}", f"{fill:+.2g}", f"{waited:+.2g}",
                             f"{r['tail'] * r['step_ns'] / 1e9:.2g}", f"**{100 * reached:.0f} %**", f"{100 * of_links:.0f} %"])
        if reached < TARGET:
            lost = {"uneven split and recomputation": uneven - (b["busy"] - even), "fill, drain and order": fill - b["fill"],
                    "waiting for messages": waited}
            parts = ", ".join(f"{k} {lost[k]:+.2g}" for k in sorted(lost, key=lost.get, reverse=True))
            notes.append(f"- {label(model, shape)}: {100 * reached:.0f} % of the bound, {100 * of_links:.0f} % of that with "
                         f"links; seconds above it: {parts}. af_pipe: {r['settings']}, {gib(r):.0f} GiB.")
    head = ("seconds", "even spread", "uneven split", "fill", "flight", "optimizer", "bound", "its split", "bound with links",
            "its split", "af_pipe", "uneven split", "fill, drain, order", "messages", "of it tail", "reached", "of that with links")
    return table(head, rows) + notes + [""]


BOUND_TEXT = """The feasible bound of af_pipe (tests/paper/bound.py, arithmetic of its own): over every integer split of the 128 GPUs,
replicas, up to 12 groups a side and all recomputation, the step in which every message is hidden. `even spread`: all
compute over all GPUs. `uneven split`: what the busiest group has above it: integer split of GPUs, layers and experts,
head and embedding, recomputation, imbalance. `fill`: until that group has work. `flight`: memory holds
too few layers of micro-batches between forward and gradient, in which time their messages travel. `bound with links` adds
that rows, one per token and node and each way, must pass the NICs of the group's own GPUs, those of full recomputation once
more. Then the simulated step's own terms: they add up to it; `tail` is what follows the last micro-batch (gradients,
optimizer)."""


def misses(points, limits, what):
    """For every band: who misses it, by which speedup, and which an af_pipe at its bound would have."""
    out = []
    for system, band in BANDS.items():
        low = [(p, speedup(row, system)) for p, row in points.items() if speedup(row, system)]
        most = {p: points[p][system]["step_ns"] / 1e9 / limits[p][1].seconds for p, _ in low}
        below = [f"{label(*p)} {x:.2f} ({most[p]:.2f})" for p, x in low if x < band[0]]
        above = [f"{label(*p)} {x:.2f}" for p, x in low if x > band[1]]
        inside = len(low) - len(below) - len(above)
        out.append(f"- {system}, {what}: {inside} of {len(low)} in {band[0]}-{band[1]}" +
                   (f"; below: {', '.join(below)}" if below else "") + (f"; above: {', '.join(above)}" if above else "") + ".")
    return out + [""]


def points_part(runs, constants, models, shapes):
    number = 2 if constants == "published" else 3
    spec = f"specs/paper/X{'_fitted' if constants == 'fitted' else ''}.moespec"
    out = [f"## {number}. The twelve points, {constants} constants", ""]
    for lifted in (False, True):
        points, limits = {}, {}
        for model in models:
            for shape in shapes:
                points[model, shape] = runs.point(model, constants, shape, lifted)
                limits[model, shape] = limit_of(model, constants, shape, {"MEM": LIFTED} if lifted else None)
        what = f"memory lifted to {LIFTED} GB" if lifted else "80 GB"
        title = f"Memory lifted to {LIFTED} GB per GPU" if lifted else "In 80 GB per GPU"
        out += [f"### {number}.{1 + lifted} {title}", ""]
        extra = f" -D MEM={LIFTED}" if lifted else ""
        out += code(f"for X in deepseek_moe gpt_oss_120b qwen3_235b; do moec compare {spec}{extra}; done")
        out += steps_table(points) + speedup_table(points, limits)
        out += ["Of each band how many points are in it; below it in brackets what an af_pipe at its bound would reach: where",
                "that is below the band as well, no split and no order of af_pipe gets there.", ""]
        out += misses(points, limits, what) + exposed_table(points) + exposed_line(points, what) + memory_table(points, limits)
        out += travel_line(points) + ["Settings:", ""] + settings_list(points)
        out += BOUND_TEXT.split("\n") + [""] if not lifted and constants == "published" else []
        out += bound_table(points, limits)
    return out


# ---- every system once per node ----


def node_part(runs, models, shapes):
    out = ["## 4. Every system once per node", "",
           "As above, but the colocated systems send a token once per node and relay it there. Tutel in more than one chunk",
           "cannot (relays do not know chunks). `auto` takes the fastest.", ""]
    out += code("moec compare specs/paper/X.moespec --sweep colocated_dedup=node")
    for constants in ("published", "fitted"):
        rows, lost = [], []
        for model in models:
            for shape in shapes:
                row = dict(runs.point(model, constants, shape, dedup="node", systems=COLOCATED))
                flat = runs.point(model, constants, shape)
                row["af_pipe"], row["afd"] = flat["af_pipe"], flat["afd"]
                ran = sorted((r["step_ns"], s) for s, r in row.items() if r["ran"])
                cells = [label(model, shape)] + [seconds(row[s]["step_ns"]) if row[s]["ran"] else "-" for s in SYSTEMS]
                if ran:
                    margin = f"{100 * (ran[1][0] / ran[0][0] - 1):.1f} %" if len(ran) > 1 else "alone"
                    cells.append(f"{ran[0][1]}, {margin}")
                    if ran[0][1] not in ("af_pipe", "afd"):
                        mine = [row[s]["step_ns"] for s in ("af_pipe", "afd") if row[s]["ran"]]
                        by = f"by {100 * (min(mine) / ran[0][0] - 1):.0f} %" if mine else "as it does not fit"
                        lost.append(f"{label(model, shape)} to {ran[0][1]} {by}")
                rows.append(cells)
        out += [f"{constants} constants, 80 GB, step in s:", ""] + table(("",) + SYSTEMS + ("auto takes, ahead by",), rows)
        out += ["Disaggregation loses " + ("nowhere." if not lost else "; ".join(lost) + "."), ""]
    return out
