"""The feasible bound of af_pipe: over all integer splits of the GPUs, the least time of a step in which every message
is hidden. A split is: replicas, groups per side, GPUs per group, recomputation. Of each split the bound is the largest of
  busy    a group's compute, after the chain that reaches its first layer (fill), with the optimizer's part behind it;
  flight  the chain of one micro-batch, forward and back; or the time for which micro-batches hold what their backward
          pass needs of a layer, from the layer's forward to its gradient, over the layers that memory holds at once.
Memory here is what no layout can do without: weights, gradients, an even part of the optimizer's state over all GPUs,
and what the backward pass needs of the micro-batches in flight; not buffers, not workspace. So the bound is from below.
Beside it the same with links: no group's NICs can move less than its rows, one per token and node of the receiving
group, and once more where full recomputation dispatches again; each GPU with one NIC and no node of both sides."""
from collections import namedtuple

Split = namedtuple("Split", "replicas p_att att p_ffn ffn recompute")
Bound = namedtuple("Bound", "seconds linked split terms")

GPUS_PER_NODE = 8


def node_rows(costs, ranks, first=0):
    """Nodes that one token goes to, of the ranks of a group from `first` on."""
    total = 0
    while first < ranks:
        last = min(ranks, first + GPUS_PER_NODE)
        hits, miss = costs.experts * last // ranks - costs.experts * first // ranks, 1.0
        for i in range(costs.k):
            miss *= max(0, costs.experts - hits - i) / (costs.experts - i)
        total, first = total + 1 - miss, last
    return total


def links_of(costs, split, layers, n_mbs, att):
    """Seconds that the NICs of one group move rows, in the busier direction: two classes of messages a layer, and with
    full recomputation the dispatch again."""
    classes = 3 if split.recompute == "full" else 2
    moved = n_mbs * layers * classes * node_rows(costs, split.ffn) * costs.seq * 2 * costs.h
    return moved / costs.nic * (1 if att else split.att / split.ffn * costs.imbalance)


def message(costs, split, seqs):
    """Seconds that one message of a layer and micro-batch takes at least, from a whole group to a whole group, however
    NICs are divided between the sides. Where both groups fit on a node, a row per token over NVLink. Otherwise some
    attention rank has no more than its fair share of the FFN ranks beside it, and what it sends to the others leaves
    its node: the NICs of all GPUs, divided so that both sides take equally long, move it."""
    row = 2 * costs.h * costs.seq
    near = GPUS_PER_NODE * split.ffn // (split.att + split.ffn)
    if near >= split.ffn:
        return row / costs.nvlink + costs.nvlink_latency
    rows = node_rows(costs, split.ffn, near)
    used = split.replicas * (split.p_att * split.att + split.p_ffn * seqs)  # an FFN group gets the rows of all sequences
    return rows * row * used / costs.gpus / costs.nic + costs.nic_latency


def spread(costs, p_att, full):
    """Attention of one sequence on the busiest of p groups, from below, as layers and head may go to any group: not
    below the mean, nor below what whole layers would leave, if all were the lightest, wherever the head is."""
    head = costs.head()
    each = [sum(costs.attention(layer)[:3 + full]) for layer in range(costs.layers)]
    if p_att == 1:
        return sum(each) + head
    whole = min(max(head + k * min(each), -(-(costs.layers - k) // (p_att - 1)) * min(each))
                for k in range(costs.layers + 1))
    return max((sum(each) + head) / p_att, max(each), whole)


def bound_of(costs, split):
    """Seconds of one split and its terms; None where memory does not hold it."""
    full, none = split.recompute == "full", split.recompute == "none"
    moe, deep = costs.layers - costs.dense, -(-(costs.layers - costs.dense) // split.p_ffn)
    seqs = -(-costs.batch // split.replicas)
    if seqs < split.att:
        return None
    n_mbs = -(-seqs // split.att)  # a sequence on each rank of an attention group; the fullest rank has one in each
    parts = seqs / split.att       # experts have less to do in a short one
    f, hop = costs.ffn(split.att, split.ffn), message(costs, split, split.att)
    ffn_all = sum(f[:3]) + (0 if none else f[3])
    starts, at = {}, 0
    for layer in range(costs.layers):
        starts["A", layer] = at
        at += costs.attention(layer)[0]
        if layer >= costs.dense:
            starts["F", layer] = at + hop
            at += f[0] + 2 * hop
    chain, held = at + costs.head(), {}
    for layer in reversed(range(costs.layers)):
        if layer >= costs.dense:
            held["F", layer] = chain + hop + f[1] - starts["F", layer]
            chain += f[1] + 2 * hop
        chain += costs.attention(layer)[1]
        held["A", layer] = chain - starts["A", layer]
    # groups of a side share what all of them hold, so that any deal of the layers is covered
    room = costs.memory * split.p_att - costs.state(costs.layers, 0, 0, 2, split.p_att)
    saved = [costs.saved_att(layer, split.recompute) for layer in range(costs.layers)]
    cap_att = room / sum(saved)
    flight = max(chain, n_mbs * sum(held["A", l] * n for l, n in enumerate(saved)) / max(room, 1))
    room = costs.memory * split.p_ffn - costs.state(0, moe, -(-costs.experts // split.ffn), 0, split.p_ffn)
    saved = costs.saved_ffn(split.att, split.ffn, split.recompute)
    cap_ffn = room / (moe * saved)
    flight = max(flight, parts * sum(held["F", l] for l in range(costs.dense, costs.layers)) * saved / max(room, 1))
    if min(cap_att, cap_ffn) < 1:
        return None
    busy = {"A": n_mbs * spread(costs, split.p_att, full), "F": parts * deep * ffn_all}
    # of the deepest groups one is as late in a turn as there are such groups
    late = moe % split.p_ffn or split.p_ffn
    fill = {"A": 0, "F": starts["F", costs.dense + late - 1]}
    worst = max(busy, key=lambda side: busy[side] + fill[side])
    seconds = max(busy[worst] + fill[worst], flight) + costs.optimizer()
    links = max(links_of(costs, split, moe / split.p_att, n_mbs, True), links_of(costs, split, deep, parts, False))
    return Bound(seconds, max(seconds, links), split,
                 {"busy": busy[worst], "fill": fill[worst], "flight": flight, "optimizer": costs.optimizer(),
                  "cap": int(min(cap_att, cap_ffn)), "group": worst, "links": links})


def perfect(costs):
    """Seconds if all compute were spread evenly over all GPUs: nothing recomputed, experts at the rate of large ones."""
    seqs = 64
    best = min(n * sum(costs.ffn(seqs, n)[:3]) for n in range(1, costs.experts + 1) if costs.experts % n == 0)
    att = sum(sum(costs.attention(l)[:3]) for l in range(costs.layers)) + costs.head() + costs.embed()
    return costs.batch * (att + (costs.layers - costs.dense) * best / seqs) / costs.gpus


def least(costs, replicas, p_att, att):
    """Of the attention side alone, from below."""
    each = sum(sum(costs.attention(l)[:3]) for l in range(costs.layers)) + costs.head()
    return costs.batch / (replicas * att * p_att) * each


class Best:
    """The best splits so far by one figure."""

    def __init__(self, most, figure):
        self.most, self.figure, self.list = most, figure, []

    def cut(self):
        return self.figure(self.list[-1]) if len(self.list) == self.most else float("inf")

    def add(self, b):
        if self.figure(b) < self.cut():
            self.list = sorted(self.list + [b], key=self.figure)[:self.most]


def bounds(costs, most=4, groups=12):
    """The best splits by the bound, and by the bound with links."""
    hidden, linked = Best(most, lambda b: b.seconds), Best(most, lambda b: b.linked)
    for replicas in range(1, costs.gpus // 2 + 1):
        budget = costs.gpus // replicas
        for p_att in range(1, min(groups, costs.layers) + 1):
            for att in range(budget // p_att, 0, -1):
                if least(costs, replicas, p_att, att) > linked.cut():  # never below the other cut
                    break
                n_mbs = costs.batch / (replicas * att)
                for p_ffn in range(1, groups + 1):
                    ffn = min((budget - p_att * att) // p_ffn, costs.experts)
                    if ffn < 1:
                        break
                    # more ranks than `few` hold no fewer experts; whole nodes cut rows
                    few = -(-costs.experts // -(-costs.experts // ffn))
                    for n in {ffn, few, max(few, ffn // GPUS_PER_NODE * GPUS_PER_NODE)}:
                        deepest = -(-(costs.layers - costs.dense) // p_ffn)
                        if n_mbs * deepest * sum(costs.ffn(att, n)[:3]) > linked.cut():
                            continue
                        for recompute in ("none", "selective", "full"):
                            b = bound_of(costs, Split(replicas, p_att, att, p_ffn, n, recompute))
                            if b:
                                hidden.add(b)
                                linked.add(b)
                                if b.terms["flight"] < b.terms["busy"]:
                                    break  # more recomputation only costs
    return hidden.list, linked.list
