#include "drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 8, MAX_CHUNKS = 4, L = MOE_LAYERS };

typedef struct Mail {
  uint8_t *data[MAX_RANKS][MAX_CHUNKS * MAX_RANKS]; /* [receiver][chunk * senders + sender] */
} Mail;

typedef struct Drive {
  const DriveLayout *layout;
  const DriveBatch *batch;
  const DriveWeights *w;
  DriveWeights *g;
  double *scalars;
  int fill;
  int mb, mb_first, mb_seqs;
  double inv_tokens;
  int32_t node_first[MAX_RANKS + 1];
  int32_t n_nodes;
  uint8_t *att_saved[L + 1][MAX_RANKS], *att_work[L + 1][MAX_RANKS];
  uint8_t *ffn_saved[L][MAX_CHUNKS][MAX_RANKS], *ffn_work[MAX_RANKS], *sum_work[MAX_RANKS];
  int chunks;
  uint8_t *scratch;
  size_t scratch_bytes;
  void **owned; /* everything allocated for this micro-batch */
  int n_owned;
  double seconds;
} Drive;

static void fail(const char *what, int a, int b)
{
  fprintf(stderr, "drive: %s %d %d\n", what, a, b);
  exit(1);
}

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *alloc(Drive *d, size_t bytes)
{
  void *p = NULL;
  if (bytes % 64 != 0) {
    fail("slot size is not a multiple of 64", (int)bytes, 0);
  }
  p = aligned_alloc(64, bytes);
  d->owned = realloc(d->owned, sizeof *d->owned * (size_t)(d->n_owned + 1));
  if (p == NULL || d->owned == NULL) {
    fail("out of memory", 0, 0);
  }
  memset(p, d->fill, bytes);
  d->owned[d->n_owned++] = p;
  return p;
}

static int att_ranks(const Drive *d, int layer)
{
  return d->layout->n_att[layer % 2];
}

/* Whether the output of `layer` is summed at its origin and comes to the next by PIPE. */
static bool joined(const Drive *d, int layer)
{
  return layer >= 0 && layer < L && (d->layout->join >> (layer % 2) & 1) != 0;
}

/* Layer of the attention ranks that COMBINE of `layer` goes to. */
static int combine_layer(const Drive *d, int layer)
{
  return joined(d, layer) ? layer : layer + 1;
}

static int seqs_of(const Drive *d, int layer, int rank)
{
  return (int)moe_part_size(d->mb_seqs, att_ranks(d, layer), rank);
}

static MoeDims att_dims(const Drive *d, int layer)
{
  return (MoeDims){.seq = d->batch->seq,
                   .mb_seqs = d->layout->mb_seqs,
                   .att_seqs = (int32_t)moe_part_max(d->layout->mb_seqs, att_ranks(d, layer)),
                   .n_src = joined(d, layer - 1) ? 0 : d->chunks * d->layout->n_ffn,
                   .n_ffn = d->layout->n_ffn,
                   .n_join = joined(d, layer) ? d->chunks * d->layout->n_ffn : 0,
                   .chunks = d->chunks};
}

static MoeDims ffn_dims(const Drive *d)
{
  return (MoeDims){.seq = d->batch->seq,
                   .mb_seqs = d->layout->mb_seqs,
                   .n_ffn = d->layout->n_ffn,
                   .ffn_experts = (int32_t)moe_part_max(MOE_EXPERTS, d->layout->n_ffn),
                   .chunks = d->chunks,
                   .relay = d->layout->node_ranks > 0};
}

static MoeCall base_call(Drive *d, int layer)
{
  return (MoeCall){.step = 3,
                   .layer = layer,
                   .mb = d->mb,
                   .relayed = d->layout->node_ranks > 0,
                   .seq = d->batch->seq,
                   .mb_seqs = d->mb_seqs,
                   .n_ffn = d->layout->n_ffn,
                   .n_chunks = d->chunks,
                   .node_first = d->node_first,
                   .n_nodes = d->n_nodes,
                   .scratch = d->scratch,
                   .inv_tokens = d->inv_tokens,
                   .inv_seqs = 1.0 / d->batch->n_seqs,
                   .scalars = d->scalars,
                   .route_only = d->batch->route_only,
                   .n_route_only = d->batch->n_route_only};
}

/* Of layer L: the head's. */
static MoeCall att_call(Drive *d, int layer, int rank)
{
  MoeCall c = base_call(d, layer);
  c.me = rank;
  c.seq0 = (int32_t)moe_part_begin(d->mb_seqs, att_ranks(d, layer), rank);
  c.n_seqs = seqs_of(d, layer, rank);
  size_t at = (size_t)(d->mb_first + c.seq0) * (size_t)c.seq;
  c.tokens = d->batch->tokens + at;
  c.labels = d->batch->labels + at;
  c.piped = joined(d, layer - 1);
  c.n_src = c.piped ? att_ranks(d, layer - 1) : layer > 0 ? d->chunks * d->layout->n_ffn : 0;
  c.saved = d->att_saved[layer][rank];
  c.work = d->att_work[layer][rank];
  if (layer < L) {
    c.w = d->w->att[layer];
    c.gw = d->g->att[layer];
    c.gain = d->w->gain[layer];
    c.g_gain = d->g->gain[layer];
    c.table = d->w->embed;
    c.g_table = d->g->embed;
  } else {
    c.w = d->w->norm;
    c.gw = d->g->norm;
    c.table = d->w->table;
    c.g_table = d->g->table;
  }
  return c;
}

static MoeCall ffn_call(Drive *d, int layer, int chunk, int rank, uint8_t *work)
{
  MoeCall c = base_call(d, layer);
  c.chunk = chunk;
  size_t first = (size_t)moe_part_begin(MOE_EXPERTS, d->layout->n_ffn, rank);
  c.me = rank;
  c.n_dst = att_ranks(d, combine_layer(d, layer));
  c.saved = d->ffn_saved[layer][chunk][rank];
  c.work = work;
  c.w = d->w->experts[layer] + first * MOE_EXPERT_ELEMS;
  c.gw = d->g->experts[layer] + first * MOE_EXPERT_ELEMS;
  c.gain = d->w->gain[layer];
  c.g_gain = d->g->gain[layer];
  return c;
}

static void run(Drive *d, MoeOpKind kind, MoeCall *c)
{
  c->kind = (uint8_t)kind;
  memset(d->scratch, d->fill, d->scratch_bytes);
  double start = now();
  MoeStatus status = moe_kernels.run[kind](c);
  d->seconds += now() - start;
  if (status != MOE_OK) {
    fail("kernel failed: kind, status", kind, status);
  }
}

/* Room that a message's slot would have. */
static size_t room_of(const Drive *d, MoeEdge edge, const MoeCall *c, int peer)
{
  bool node =
      edge == MOE_EDGE_FORWARD || edge == MOE_EDGE_GATHER || edge == MOE_EDGE_GATHER_B || edge == MOE_EDGE_FORWARD_B;
  int seq = (int)moe_part_size(d->batch->seq, d->chunks, c->chunk);
  if (edge == MOE_EDGE_PIPE || edge == MOE_EDGE_PIPE_B) {
    int64_t begin;
    int seqs = (int)moe_part_overlap(d->mb_seqs, c->n_dst, peer, c->seq0, c->n_seqs, &begin);
    return moe_kernels.msg_bytes(edge, d->batch->seq, seqs, 0);
  }
  bool combine = edge == MOE_EDGE_COMBINE || edge == MOE_EDGE_COMBINE_B;
  int att_layer = combine ? combine_layer(d, c->layer) : c->layer;
  int seqs = node ? d->layout->mb_seqs : (int)moe_part_max(d->layout->mb_seqs, att_ranks(d, att_layer));
  int experts = (int)moe_part_max(MOE_EXPERTS, d->layout->n_ffn) *
                (d->layout->node_ranks > 0 && !node ? d->layout->node_ranks : 1);
  return moe_kernels.msg_bytes(edge, seq, seqs, experts);
}

/* Packs for every peer in [first, last); `box` is the sender's place in their mail. */
static void send_as(Drive *d, MoeEdge edge, MoeCall *c, int first, int last, int box, Mail *mail)
{
  c->kind = MOE_OP_SEND;
  c->edge = (uint8_t)edge;
  for (int peer = first; peer < last; peer++) {
    size_t room = room_of(d, edge, c, peer);
    uint8_t *slot = alloc(d, room);
    double start = now();
    c->peer = peer;
    size_t bytes = moe_kernels.pack[edge](c, slot);
    d->seconds += now() - start;
    const MoeMsgHead *head = (const void *)slot;
    if (bytes == 0 || bytes > room || head->bytes != bytes ||
        head->stamp != moe_stamp(c->step, (uint32_t)c->chunk, (uint32_t)c->layer, (uint32_t)c->mb, edge)) {
      fail("bad message: edge, bytes", edge, (int)bytes);
    }
    mail->data[peer][box] = slot;
  }
}

static void send(Drive *d, MoeEdge edge, MoeCall *c, int first, int last, Mail *mail)
{
  send_as(d, edge, c, first, last, c->me, mail);
}

/* To attention ranks, whose ops take the messages of all chunks together. */
static void send_chunk(Drive *d, MoeEdge edge, MoeCall *c, int last, Mail *mail)
{
  send_as(d, edge, c, 0, last, c->chunk * d->layout->n_ffn + c->me, mail);
}

static void take(MoeCall *c, const Mail *mail, int first, int last, MoeIn *in)
{
  for (int i = first; i < last; i++) {
    in[i - first] = (MoeIn){mail->data[c->me][i], i};
  }
  c->in = in;
  c->n_in = last - first;
}

static void node_of(const Drive *d, int rank, int *first, int *last)
{
  int n = d->layout->node_ranks;
  *first = rank / n * n;
  *last = *first + n < d->layout->n_ffn ? *first + n : d->layout->n_ffn;
}

static void ffn_forward(Drive *d, int l, int chunk, const Mail *dispatch, Mail *combine)
{
  int n_att = att_ranks(d, l);
  int n_ffn = d->layout->n_ffn;
  MoeIn in[MAX_RANKS];
  int first, last;
  Mail forward, gather;
  if (d->layout->node_ranks > 0) {
    for (int j = 0; j < n_ffn; j++) {
      MoeCall c = ffn_call(d, l, chunk, j, NULL);
      take(&c, dispatch, 0, n_att, in);
      run(d, MOE_OP_RELAY, &c);
      node_of(d, j, &first, &last);
      send(d, MOE_EDGE_FORWARD, &c, first, last, &forward);
    }
  }
  for (int j = 0; j < n_ffn; j++) {
    MoeCall c = ffn_call(d, l, chunk, j, d->ffn_work[j]);
    if (d->layout->node_ranks > 0) {
      node_of(d, j, &first, &last);
      take(&c, &forward, first, last, in);
      run(d, MOE_OP_FFN_FWD, &c);
      send(d, MOE_EDGE_GATHER, &c, first, last, &gather);
    } else {
      take(&c, dispatch, 0, n_att, in);
      run(d, MOE_OP_FFN_FWD, &c);
      send_chunk(d, MOE_EDGE_COMBINE, &c, c.n_dst, combine);
    }
  }
  for (int j = 0; j < n_ffn && d->layout->node_ranks > 0; j++) {
    MoeCall c = ffn_call(d, l, chunk, j, d->sum_work[j]);
    node_of(d, j, &first, &last);
    take(&c, &gather, first, last, in);
    c.edge = MOE_EDGE_GATHER;
    run(d, MOE_OP_NODE_REDUCE, &c);
    send_chunk(d, MOE_EDGE_COMBINE, &c, c.n_dst, combine);
  }
}

static void ffn_backward(Drive *d, int l, int chunk, const Mail *combine_b, Mail *dispatch_b)
{
  int n_att = att_ranks(d, l);
  int n_ffn = d->layout->n_ffn;
  MoeIn in[MAX_RANKS];
  int first, last;
  Mail gather_b, forward_b;
  for (int j = 0; j < n_ffn && d->layout->node_ranks > 0; j++) {
    MoeCall c = ffn_call(d, l, chunk, j, NULL);
    take(&c, combine_b, 0, c.n_dst, in);
    node_of(d, j, &first, &last);
    send(d, MOE_EDGE_GATHER_B, &c, first, last, &gather_b);
  }
  for (int j = 0; j < n_ffn; j++) {
    MoeCall c = ffn_call(d, l, chunk, j, d->ffn_work[j]);
    if (d->layout->node_ranks > 0) {
      node_of(d, j, &first, &last);
      take(&c, &gather_b, first, last, in);
      run(d, MOE_OP_FFN_DGRAD, &c);
      send(d, MOE_EDGE_FORWARD_B, &c, first, last, &forward_b);
    } else {
      take(&c, combine_b, 0, c.n_dst, in);
      run(d, MOE_OP_FFN_DGRAD, &c);
      send_chunk(d, MOE_EDGE_DISPATCH_B, &c, n_att, dispatch_b);
    }
    c.in = NULL;
    c.n_in = 0;
    run(d, MOE_OP_FFN_WGRAD, &c);
  }
  for (int j = 0; j < n_ffn && d->layout->node_ranks > 0; j++) {
    MoeCall c = ffn_call(d, l, chunk, j, d->sum_work[j]);
    node_of(d, j, &first, &last);
    take(&c, &forward_b, first, last, in);
    c.edge = MOE_EDGE_FORWARD_B;
    run(d, MOE_OP_NODE_REDUCE, &c);
    send_chunk(d, MOE_EDGE_DISPATCH_B, &c, n_att, dispatch_b);
  }
}

static void fresh_ffn_work(Drive *d)
{
  MoeDims dims = ffn_dims(d);
  for (int j = 0; j < d->layout->n_ffn; j++) {
    d->ffn_work[j] = alloc(d, moe_kernels.ffn_work_bytes(&dims));
    d->sum_work[j] = alloc(d, moe_kernels.ffn_work_bytes(&dims));
  }
}

static void fresh_slots(Drive *d)
{
  MoeDims dims = ffn_dims(d);
  d->scratch_bytes = moe_kernels.scratch_bytes(&dims);
  for (int l = 0; l <= L; l++) {
    dims = att_dims(d, l);
    d->scratch_bytes = moe_max(d->scratch_bytes, moe_kernels.scratch_bytes(&dims));
    for (int i = 0; i < att_ranks(d, l); i++) {
      d->att_saved[l][i] = alloc(d, moe_kernels.att_saved_bytes(&dims));
      d->att_work[l][i] = alloc(d, moe_kernels.att_work_bytes(&dims));
    }
  }
  d->scratch = alloc(d, d->scratch_bytes);
  dims = ffn_dims(d);
  for (int k = 0; k < L * d->chunks * d->layout->n_ffn; k++) {
    int j = k % d->layout->n_ffn, chunk = k / d->layout->n_ffn % d->chunks;
    d->ffn_saved[k / (d->chunks * d->layout->n_ffn)][chunk][j] = alloc(d, moe_kernels.ffn_saved_bytes(&dims));
  }
}

/* A join of `layer` on one rank, with a work slot of its own. */
static MoeCall join_call(Drive *d, int layer, int rank)
{
  MoeDims dims = att_dims(d, layer);
  MoeCall c = att_call(d, layer, rank);
  c.work = alloc(d, moe_kernels.att_work_bytes(&dims));
  c.piped = true;
  c.n_dst = att_ranks(d, layer + 1);
  return c;
}

/* Sums what COMBINE brought and sends it on. */
static void join_forward(Drive *d, int layer, const Mail *combine, Mail *pipe)
{
  MoeIn in[MAX_CHUNKS * MAX_RANKS];
  for (int i = 0; i < att_ranks(d, layer); i++) {
    MoeCall c = join_call(d, layer, i);
    c.n_src = d->chunks * d->layout->n_ffn;
    take(&c, combine, 0, c.n_src, in);
    run(d, MOE_OP_JOIN_FWD, &c);
    send(d, MOE_EDGE_PIPE, &c, 0, c.n_dst, pipe);
  }
}

/* Sends a chunk's gradient rows of the output of `layer` along the lists in the call's slot. */
static void send_back(Drive *d, MoeCall c, int layer, bool of_join, Mail *combine_b)
{
  c.layer = layer;
  c.piped = of_join;
  for (c.chunk = 0; c.chunk < d->chunks; c.chunk++) {
    send(d, MOE_EDGE_COMBINE_B, &c, 0, d->layout->n_ffn, &combine_b[c.chunk]);
  }
}

/* The gradient of the input of layer + 1, in `call`'s work slot, goes back to the experts of `layer`. */
static void send_input_gradient(Drive *d, const MoeCall *call, int layer, Mail *pipe_b, Mail *combine_b)
{
  MoeCall c = *call;
  c.in = NULL;
  c.n_in = 0;
  if (joined(d, layer)) {
    c.layer = layer;
    c.n_dst = att_ranks(d, layer);
    send(d, MOE_EDGE_PIPE_B, &c, 0, c.n_dst, pipe_b);
  } else {
    send_back(d, c, layer, false, combine_b);
  }
}

static void join_backward(Drive *d, int layer, const Mail *pipe_b, Mail *combine_b)
{
  MoeIn in[MAX_RANKS];
  for (int i = 0; i < att_ranks(d, layer) && joined(d, layer); i++) {
    MoeCall c = join_call(d, layer, i);
    c.n_src = att_ranks(d, layer + 1);
    take(&c, pipe_b, 0, c.n_src, in);
    run(d, MOE_OP_JOIN_DGRAD, &c);
    send_back(d, c, layer, true, combine_b);
  }
}

static void forward(Drive *d, Mail *input)
{
  MoeIn in[MAX_CHUNKS * MAX_RANKS];
  Mail dispatch[MAX_CHUNKS], combine;
  for (int l = 0; l < L; l++) {
    for (int i = 0; i < att_ranks(d, l); i++) {
      MoeCall c = att_call(d, l, i);
      if (l == 0) {
        run(d, MOE_OP_EMBED_FWD, &c);
      } else {
        take(&c, input, 0, c.n_src, in);
      }
      run(d, MOE_OP_ATT_FWD, &c);
      for (c.chunk = 0; c.chunk < d->chunks; c.chunk++) {
        send(d, MOE_EDGE_DISPATCH, &c, 0, d->layout->n_ffn, &dispatch[c.chunk]);
      }
    }
    for (int chunk = 0; chunk < d->chunks; chunk++) {
      fresh_ffn_work(d);
      ffn_forward(d, l, chunk, &dispatch[chunk], &combine);
    }
    if (joined(d, l)) {
      join_forward(d, l, &combine, input);
    } else {
      *input = combine;
    }
  }
}

static void backward(Drive *d, Mail *pipe_b, Mail *combine_b)
{
  MoeIn in[MAX_CHUNKS * MAX_RANKS];
  Mail dispatch_b;
  for (int l = L - 1; l >= 0; l--) {
    join_backward(d, l, pipe_b, combine_b);
    for (int chunk = d->chunks - 1; chunk >= 0; chunk--) {
      fresh_ffn_work(d);
      ffn_backward(d, l, chunk, &combine_b[chunk], &dispatch_b);
    }
    for (int i = 0; i < att_ranks(d, l); i++) {
      MoeCall c = att_call(d, l, i);
      take(&c, &dispatch_b, 0, d->chunks * d->layout->n_ffn, in);
      run(d, MOE_OP_ATT_DGRAD, &c);
      c.in = NULL;
      c.n_in = 0;
      run(d, MOE_OP_ATT_WGRAD, &c);
      if (l == 0) {
        run(d, MOE_OP_EMBED_WGRAD, &c);
      } else {
        send_input_gradient(d, &c, l - 1, pipe_b, combine_b);
      }
    }
  }
}

static void micro_batch(Drive *d)
{
  MoeIn in[MAX_CHUNKS * MAX_RANKS];
  Mail input, pipe_b, combine_b[MAX_CHUNKS];
  fresh_slots(d);
  forward(d, &input);
  for (int i = 0; i < att_ranks(d, L); i++) {
    MoeCall c = att_call(d, L, i);
    take(&c, &input, 0, c.n_src, in);
    run(d, MOE_OP_HEAD, &c);
    send_input_gradient(d, &c, L - 1, &pipe_b, combine_b);
  }
  backward(d, &pipe_b, combine_b);
  for (int i = 0; i < d->n_owned; i++) {
    free(d->owned[i]);
  }
  d->n_owned = 0;
}

double drive_step(const DriveLayout *layout, const DriveBatch *batch, const DriveWeights *w, DriveWeights *grads,
                  double *scalars, int fill)
{
  Drive d = {.layout = layout, .batch = batch, .w = w, .g = grads, .scalars = scalars, .fill = fill};
  d.chunks = layout->chunks > 0 ? layout->chunks : 1;
  int valid = 0;
  for (int t = 0; t < batch->n_seqs * batch->seq; t++) {
    valid += batch->labels[t] >= 0;
  }
  d.inv_tokens = valid > 0 ? 1.0 / valid : 0.0;
  for (int at = 0; layout->node_ranks > 0 && at < layout->n_ffn; at += layout->node_ranks) {
    d.node_first[d.n_nodes++] = at;
    d.node_first[d.n_nodes] = (int32_t)moe_min((size_t)(at + layout->node_ranks), (size_t)layout->n_ffn);
  }
  /* One micro-batch more than needed: the last is empty. */
  for (d.mb = 0; d.mb_first <= batch->n_seqs; d.mb++, d.mb_first += layout->mb_seqs) {
    d.mb_seqs = (int)moe_min((size_t)layout->mb_seqs, (size_t)(batch->n_seqs - d.mb_first));
    micro_batch(&d);
  }
  free(d.owned);
  return d.seconds;
}

void drive_weights_new(DriveWeights *w)
{
  size_t table = (size_t)MOE_VOCAB * MOE_HIDDEN;
  size_t layer = MOE_ATT_ELEMS + MOE_HIDDEN + MOE_EXPERTS * MOE_EXPERT_ELEMS;
  w->n = table * (MOE_TIED ? 1 : 2) + MOE_HIDDEN + L * layer;
  w->data = calloc(w->n, sizeof *w->data);
  if (w->data == NULL) {
    fail("out of memory", 0, 0);
  }
  float *at = w->data;
  w->embed = at;
  w->table = MOE_TIED ? w->embed : at + table;
  at += table * (MOE_TIED ? 1 : 2);
  w->norm = at;
  at += MOE_HIDDEN;
  for (int l = 0; l < L; l++) {
    w->att[l] = at;
    w->gain[l] = at + MOE_ATT_ELEMS;
    w->experts[l] = w->gain[l] + MOE_HIDDEN;
    at += layer;
  }
}

void drive_weights_free(DriveWeights *w)
{
  free(w->data);
}
