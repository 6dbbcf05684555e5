/* Slots of the four pools and of the message channels, by interval colouring over the modelled times: whoever starts
   first takes the slot that has been free longest, or a new one.

   Who may hold a slot how long, and what the next owner must wait for. A slot's life is the ops below; those marked
   LAST are the ones whose end the next owner cannot know from the messages it got. Every other reader is finished
   because an answer to what it sent, from every rank it sent to, was read by a LAST op: SEND DISPATCH before DISPATCH_B
   arrives, SEND FORWARD before GATHER, SEND GATHER before COMBINE_B, SEND GATHER_B before FORWARD_B, SEND COMBINE
   before COMBINE_B, SEND PIPE before PIPE_B, a join's SEND COMBINE_B before DISPATCH_B.
   - compute op after compute op: table order, no wait;
   - compute op after SEND COMBINE_B, PIPE_B, DISPATCH_B, COMBINE, PIPE, GATHER or FORWARD_B that reads the slot: a
     wait, unless a compute op above it in the table has read the answers;
   - RELAY and NODE_REDUCE run beside the compute, so they also wait for the weight gradient that had the slot.
   Channel slots need no waits: the sender of use k waits for the release of use k - 1 by itself. */
#include "codegen/sched_int.h"

#include <stdlib.h>

/* What a user is; and PLAIN, RELAYED: only in layers without or with relays; PIPED, DIRECT: only in layers whose output
   goes on by PIPE, or not; AGAIN: only in layers that are computed again. */
enum { LAST = 1, PLAIN = 2, RELAYED = 4, PIPED = 8, DIRECT = 16, DENSE = 32, AGAIN = 64 };

typedef struct User {
  SchedTask task;
  int d_layer; /* the task's layer less the slot's */
  unsigned flags;
} User;

enum { POOL_ATT_SAVED, POOL_ATT_WORK, POOL_FFN_SAVED, POOL_FFN_WORK, POOL_COUNT };

enum { MAX_KIND = 15, MAX_USERS = 13 + 4 * SCHED_MAX_CHUNKS };

/* Slots of attention are one per (layer, micro-batch) and serve all chunks, those of the FFN are one per chunk. */
static const struct {
  int pool;
  int n;
  User users[MAX_KIND];
} kinds[] = {
    {POOL_ATT_SAVED,
     15,
     {{TASK_EMBED_FWD, 0, 0},
      {TASK_ATT_FWD, 0, 0},
      {TASK_HEAD, 0, LAST},
      {TASK_DISPATCH, 0, 0},
      {TASK_JOIN_FWD, 0, 0},
      {TASK_PIPE, 0, 0},
      {TASK_ATT_AGAIN, 0, 0},
      {TASK_DISPATCH_AGAIN, 0, 0},
      {TASK_JOIN_DGRAD, 0, 0},
      {TASK_COMBINE_B, 0, PIPED},
      {TASK_ATT_DGRAD, 0, 0},
      {TASK_ATT_WGRAD, 0, LAST},
      {TASK_EMBED_WGRAD, 0, LAST},
      {TASK_COMBINE_B, -1, LAST | DIRECT},
      {TASK_PIPE_B, -1, LAST}}},
    {POOL_ATT_WORK,
     8,
     {{TASK_HEAD, 0, LAST},
      {TASK_ATT_AGAIN, 0, 0},
      {TASK_DISPATCH_AGAIN, 0, 0},
      {TASK_ATT_DGRAD, 0, 0},
      {TASK_ATT_WGRAD, 0, LAST},
      {TASK_EMBED_WGRAD, 0, LAST},
      {TASK_COMBINE_B, -1, LAST | DIRECT},
      {TASK_PIPE_B, -1, LAST}}},
    {POOL_ATT_WORK, 3, {{TASK_ATT_FWD, 0, DENSE}, {TASK_JOIN_FWD, 0, 0}, {TASK_PIPE, 0, LAST}}},
    {POOL_ATT_WORK, 2, {{TASK_ATT_FWD, 0, AGAIN}, {TASK_DISPATCH, 0, LAST | AGAIN}}},
    {POOL_ATT_WORK, 2, {{TASK_JOIN_DGRAD, 0, 0}, {TASK_COMBINE_B, 0, LAST | PIPED}}},
    {POOL_FFN_SAVED,
     13,
     {{TASK_RELAY, 0, 0},
      {TASK_FORWARD, 0, 0},
      {TASK_FFN_FWD, 0, 0},
      {TASK_GATHER, 0, 0},
      {TASK_REDUCE_FWD, 0, 0},
      {TASK_COMBINE, 0, 0},
      {TASK_FORWARD_AGAIN, 0, 0},
      {TASK_GATHER_B, 0, 0},
      {TASK_FFN_DGRAD, 0, 0},
      {TASK_FFN_WGRAD, 0, LAST},
      {TASK_FORWARD_B, 0, LAST},
      {TASK_REDUCE_BWD, 0, 0},
      {TASK_DISPATCH_B, 0, LAST}}},
    {POOL_FFN_WORK, 3, {{TASK_FFN_FWD, 0, 0}, {TASK_COMBINE, 0, LAST | PLAIN}, {TASK_GATHER, 0, LAST | RELAYED}}},
    {POOL_FFN_WORK, 2, {{TASK_REDUCE_FWD, 0, RELAYED}, {TASK_COMBINE, 0, LAST | RELAYED}}},
    {POOL_FFN_WORK,
     4,
     {{TASK_FFN_DGRAD, 0, 0},
      {TASK_FFN_WGRAD, 0, LAST},
      {TASK_DISPATCH_B, 0, LAST | PLAIN},
      {TASK_FORWARD_B, 0, LAST | RELAYED}}},
    {POOL_FFN_WORK, 2, {{TASK_REDUCE_BWD, 0, RELAYED}, {TASK_DISPATCH_B, 0, LAST | RELAYED}}},
};

/* One interval to colour. */
typedef struct Life {
  int32_t key; /* pool of a group, or channel */
  int32_t seq; /* of the op that begins it */
  int64_t begin, end;
  int32_t recs[MAX_USERS]; /* pool: users; channel: SEND and RECV */
  int8_t n_recs;
  int8_t first;  /* index of the op that begins it */
  uint32_t last; /* bits: LAST users */
} Life;

typedef struct Slot {
  int64_t free_at;
  int32_t number;
  int32_t uses;
  const Life *owner; /* the latest */
} Slot;

/* What lives are sorted by, apart from them: they are large. */
typedef struct LifeKey {
  int64_t begin;
  int32_t key, seq;
  int32_t life;
} LifeKey;

static int by_begin(const void *a, const void *b)
{
  const LifeKey *x = a, *y = b;
  if (x->key != y->key) {
    return x->key < y->key ? -1 : 1;
  }
  if (x->begin != y->begin) {
    return x->begin < y->begin ? -1 : 1;
  }
  return x->seq < y->seq ? -1 : x->seq > y->seq;
}

static bool before(const Slot *a, const Slot *b)
{
  return a->free_at < b->free_at || (a->free_at == b->free_at && a->number < b->number);
}

static void sift_down(Slot *slots, int n)
{
  for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(&slots[child + 1], &slots[child])) {
      child++;
    }
    if (!before(&slots[child], &slots[i])) {
      return;
    }
    Slot t = slots[i];
    slots[i] = slots[child];
    slots[child] = t;
  }
}

static void sift_up(Slot *slots, int n)
{
  for (int i = n - 1; i > 0 && before(&slots[i], &slots[(i - 1) / 2]); i = (i - 1) / 2) {
    Slot t = slots[i];
    slots[i] = slots[(i - 1) / 2];
    slots[(i - 1) / 2] = t;
  }
}

typedef void Assign(const SchedNet *, SchedRecs *, Schedule *, const Life *, const Slot *);

/* Colours the lives of each key. Slots form a heap by the time they become free. */
static void colour(const SchedNet *net, SchedRecs *recs, Schedule *sched, const Life *lives, int n_lives,
                   Assign *assign)
{
  Slot *slots = malloc((size_t)(n_lives + 1) * sizeof *slots);
  LifeKey *keys = malloc((size_t)(n_lives + 1) * sizeof *keys);
  if (!slots || !keys) {
    die("out of memory");
  }
  for (int i = 0; i < n_lives; i++) {
    keys[i] = (LifeKey){lives[i].begin, lives[i].key, lives[i].seq, i};
  }
  qsort(keys, (size_t)n_lives, sizeof *keys, by_begin);
  int n = 0;
  for (int i = 0; i < n_lives; i++) {
    const Life *life = &lives[keys[i].life];
    if (i == 0 || keys[i - 1].key != life->key) {
      n = 0;
    }
    if (n > 0 && slots[0].free_at <= life->begin) {
      assign(net, recs, sched, life, &slots[0]);
      slots[0].free_at = life->end;
      slots[0].uses++;
      slots[0].owner = life;
      sift_down(slots, n);
    } else {
      slots[n] = (Slot){.number = n};
      assign(net, recs, sched, life, &slots[n]);
      slots[n].free_at = life->end;
      slots[n].uses = 1;
      slots[n].owner = life;
      sift_up(slots, ++n);
    }
  }
  free(slots);
  free(keys);
}

static bool is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

/* Does `rec` or a compute op of the same group, above it in the table, read answers to this SEND from every rank it
   went to? The answer to a gradient on its way down is the gradient of the layer below: ATT_DGRAD reads what COMBINE_B
   led to, FFN_DGRAD what DISPATCH_B led to. The answer to DISPATCH is COMBINE. */
static bool answered(const SchedNet *net, const SchedRecs *recs, const SchedRec *rec, const MoeOp *send)
{
  int way = sched_way(net, send->mb), layer = send->layer;
  int32_t id = -1;
  if (send->kind == MOE_OP_SEND && send->edge == MOE_EDGE_COMBINE_B) {
    id = sched_id(net, TASK_ATT_DGRAD, layer, send->mb, 0);
  } else if (send->kind == MOE_OP_SEND && send->edge == MOE_EDGE_DISPATCH_B && layer > 0 &&
             !net->piped[sched_at(net, way, layer - 1)]) {
    id = sched_id(net, TASK_FFN_DGRAD, layer - 1, send->mb, net->chunks - 1);
  }
  if (send->kind == MOE_OP_SEND && send->edge == MOE_EDGE_DISPATCH) {
    bool head = layer + 1 == net->n_layers;
    id = net->piped[sched_at(net, way, layer)] ? sched_id(net, TASK_JOIN_FWD, layer, send->mb, 0)
                                               : sched_id(net, head ? TASK_HEAD : TASK_ATT_FWD, layer + 1, send->mb, 0);
  }
  const SchedRec *reader = id < 0 || recs->by_task[id] < 0 ? NULL : &recs->recs[recs->by_task[id]];
  return reader && reader->group == rec->group &&
         (reader->start < rec->start || (reader->start == rec->start && reader->seq <= rec->seq));
}

static void assign_pool(const SchedNet *net, SchedRecs *recs, Schedule *sched, const Life *life, const Slot *slot)
{
  int pool = life->key % POOL_COUNT;
  SchedGroup *group = &sched->groups[life->key / POOL_COUNT];
  int *count[] = {&group->att_saved, &group->att_work, &group->ffn_saved, &group->ffn_work};
  *count[pool] = slot->number + 1 > *count[pool] ? slot->number + 1 : *count[pool];
  for (int i = 0; i < life->n_recs; i++) {
    MoeOp *op = &recs->recs[life->recs[i]].op;
    *(pool == POOL_ATT_SAVED || pool == POOL_FFN_SAVED ? &op->saved : &op->work) = slot->number;
  }
  const Life *old = slot->owner;
  int32_t first = life->recs[(int)life->first];
  bool compute = is_compute(&recs->recs[first].op);
  for (int i = 0; old && i < old->n_recs; i++) {
    const MoeOp *user = &recs->recs[old->recs[i]].op;
    bool known = compute && (is_compute(user) || (net->chunks > 1 && answered(net, recs, &recs->recs[first], user)));
    if ((old->last >> i & 1) && !known) {
      sched_wait(recs, first, old->recs[i]);
    }
  }
}

static void assign_chan(const SchedNet *net, SchedRecs *recs, Schedule *sched, const Life *life, const Slot *slot)
{
  (void)net;
  MoeChan *chan = &sched->chans[life->key];
  chan->slots = (int16_t)(slot->number + 1 > chan->slots ? slot->number + 1 : chan->slots);
  for (int i = 0; i < 2; i++) {
    MoeOp *op = &recs->recs[life->recs[i]].op;
    op->chan = (int16_t)life->key;
    op->slot = (int16_t)slot->number;
    op->use = slot->uses;
  }
}

static void add_user(const SchedRecs *recs, size_t kind, int32_t id, unsigned flags, Life *life)
{
  int32_t number = recs->by_task[id];
  const SchedRec *rec = &recs->recs[number];
  if (rec->start < life->begin || (rec->start == life->begin && rec->seq < life->seq)) {
    life->begin = rec->start;
    life->seq = rec->seq;
    life->first = life->n_recs;
    life->key = rec->group * POOL_COUNT + kinds[kind].pool;
  }
  life->end = rec->end > life->end ? rec->end : life->end;
  life->last |= (uint32_t)(flags & LAST) << life->n_recs;
  life->recs[(int)life->n_recs++] = number;
}

static bool pool_life(const SchedNet *net, const SchedRecs *recs, size_t kind, int layer, int mb, int chunk, Life *life)
{
  bool per_chunk = kinds[kind].pool >= POOL_FFN_SAVED;
  int way = sched_way(net, mb);
  *life = (Life){.begin = INT64_MAX};
  for (int i = 0; i < kinds[kind].n; i++) {
    User user = kinds[kind].users[i];
    int layer_of = layer + user.d_layer;
    if (layer_of < 0 || !sched_task_exists(net, user.task, layer_of, way)) {
      continue;
    }
    int at = sched_at(net, way, layer_of);
    bool relayed = layer_of < net->n_layers && net->relayed[at], piped = layer_of < net->n_layers && net->piped[at];
    if (((user.flags & PLAIN) && relayed) || ((user.flags & RELAYED) && !relayed) || ((user.flags & DIRECT) && piped) ||
        ((user.flags & PIPED) && !piped) || ((user.flags & DENSE) && layer_of >= net->spec->model.dense.layers) ||
        ((user.flags & AGAIN) && !sched_again(net, layer_of))) {
      continue;
    }
    int n = per_chunk ? chunk + 1 : sched_chunks(net, user.task);
    for (int c = per_chunk ? chunk : 0; c < n; c++) {
      add_user(recs, kind, sched_id(net, user.task, layer_of, mb, c), user.flags, life);
    }
  }
  return life->n_recs > 0;
}

int sched_chan(Schedule *sched, MoeEdge edge, MoeBucketKind bucket, int src, int dst)
{
  for (int c = 0; c < sched->n_chans; c++) {
    const MoeChan *chan = &sched->chans[c];
    if (chan->edge == edge && chan->bucket == bucket && chan->src == src && chan->dst == dst) {
      return c;
    }
  }
  sched->chans[sched->n_chans] =
      (MoeChan){.edge = (uint8_t)edge, .bucket = (uint8_t)bucket, .src = (int16_t)src, .dst = (int16_t)dst};
  return sched->n_chans++;
}

static void colour_pools(Arena *arena, const SchedNet *net, SchedRecs *recs, Schedule *sched)
{
  size_t n_kinds = sizeof kinds / sizeof *kinds, n_mbs = (size_t)net->n_mbs, n_layers = (size_t)net->n_layers + 1;
  Life *lives = arena_new_array(arena, Life, n_kinds * n_mbs * n_layers * (size_t)net->chunks);
  int n = 0;
  for (size_t kind = 0; kind < n_kinds; kind++) {
    bool att = kinds[kind].pool == POOL_ATT_SAVED || kinds[kind].pool == POOL_ATT_WORK;
    for (int layer = 0; layer < net->n_layers + att; layer++) {
      for (int mb = 0; mb < net->n_mbs; mb++) {
        for (int chunk = 0; chunk < (att ? 1 : net->chunks); chunk++) {
          n += pool_life(net, recs, kind, layer, mb, chunk, &lives[n]);
        }
      }
    }
  }
  colour(net, recs, sched, lives, n, assign_pool);
}

static void colour_chans(Arena *arena, const SchedNet *net, SchedRecs *recs, Schedule *sched)
{
  Life *lives = arena_new_array(arena, Life, (size_t)recs->n / 2 + 1);
  int n = 0;
  for (SchedTask task = TASK_DISPATCH; task < TASK_COUNT; task++) {
    for (int layer = 0; layer < net->n_layers; layer++) {
      int chans[2] = {-1, -1};
      for (int way = 0; way < net->ways; way++) {
        chans[way] = sched_task_exists(net, task, layer, way)
                         ? sched_chan(sched, sched_edge(task), MOE_BUCKET_NONE, sched_group(net, task, layer, way),
                                      sched_dst(net, task, layer, way))
                         : -1;
      }
      for (int k = 0; k < net->n_mbs * sched_chunks(net, task); k++) {
        int mb = k / sched_chunks(net, task);
        if (chans[sched_way(net, mb)] < 0) {
          continue;
        }
        int32_t id = sched_id(net, task, layer, mb, k % sched_chunks(net, task));
        const SchedRec *send = &recs->recs[recs->by_task[id]], *recv = &recs->recs[recs->recv_of[id]];
        lives[n] = (Life){.key = chans[sched_way(net, mb)], .seq = send->seq, .begin = send->start, .end = recv->freed};
        lives[n].recs[0] = recs->by_task[id];
        lives[n++].recs[1] = recs->recv_of[id];
      }
    }
  }
  colour(net, recs, sched, lives, n, assign_chan);
}

void sched_slots(Arena *arena, const SchedNet *net, SchedRecs *recs, Schedule *sched)
{
  colour_pools(arena, net, recs, sched);
  colour_chans(arena, net, recs, sched);
}
