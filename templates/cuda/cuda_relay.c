/* Relays, as relay.c has them; all on the lane of the progress thread. */
#include "cuda_ops.h"

/* The op or message at hand. */
typedef struct Relay {
  MoeList list;
  CudaNode node;
  MoeRelaySizes sizes;
  CudaPackScratch t;
} Relay;

static void open_relay(const MoeCall *call, const MoeListHead *counts, Relay *r)
{
  cuda_relay_list(call, counts, &r->list);
  r->node = cuda_node(call);
  r->sizes =
      (MoeRelaySizes){.n_rows = r->list.head->rows, .n_ffn = call->n_ffn, .first = r->node.first, .last = r->node.last};
  size_t ranks = (size_t)(r->node.last - r->node.first);
  cuda_pack_scratch(call->scratch, ranks, 0, (size_t)call->n_in, r->list.head->rows, &r->t);
}

static MoeStatus plan_relay(const MoeCall *call, const Relay *r)
{
  return moe_cuda_plan_relay(&r->sizes, r->list.rows, r->list.pairs, &r->t.relay, moe_queue(call));
}

MoeStatus cuda_relay(MoeCall *call)
{
  Relay r;
  MoeListHead counts;
  const CudaKind kind = {.head_bytes = MOE_LIST_HEAD, .pair_bytes = MOE_LIST_PAIR};
  CudaNode node = cuda_node(call);
  MOE_TRY(cuda_count_list(call, moe_mb_tokens(call), node.first, node.last, &counts));
  open_relay(call, &counts, &r);
  const MoeTakeSizes sizes = {.mb_tokens = moe_mb_tokens(call),
                              .seq = (size_t)call->seq,
                              .n_rows = counts.rows,
                              .n_pairs = counts.pairs,
                              .n_ffn = call->n_ffn,
                              .n_chunks = 1,
                              .first_expert = (int32_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, node.first),
                              .end_expert = (int32_t)moe_part_begin(MOE_EXPERTS, call->n_ffn, node.last)};
  const MoeTaken taken = {.rows = r.list.rows, .pairs = r.list.pairs, .src = r.list.src, .a = NULL, .runs = r.t.runs};
  MOE_TRY(cuda_inputs(call, kind, 0, r.t.in, NULL));
  return moe_cuda_take_list(&sizes, r.t.in, (size_t)call->n_in, &taken, moe_status(call), moe_queue(call));
}

/* The rows for `peer` out of the messages that arrived: FORWARD, FORWARD_AGAIN; GATHER_B. */
static MoeStatus pack_forward(const MoeCall *call, void *slot)
{
  Relay r;
  size_t n;
  MoeQueue queue = moe_queue(call);
  bool lists = call->edge == MOE_EDGE_FORWARD;
  const CudaKind kind = {.head_bytes = lists ? MOE_LIST_HEAD : MOE_NO_HEAD,
                         .pair_bytes = lists ? MOE_LIST_PAIR : 0,
                         .again = call->edge == MOE_EDGE_FORWARD_AGAIN};
  open_relay(call, NULL, &r);
  MOE_TRY(cuda_inputs(call, kind, 0, r.t.in, &n));
  if (call->edge == MOE_EDGE_GATHER_B) {
    MOE_TRY(
        moe_cuda_dst_runs(r.list.rows, r.sizes.n_rows, call->mb_seqs, (size_t)call->seq, (int32_t)n, &r.t.runs, queue));
  } else {
    MOE_TRY(moe_cuda_src_runs(r.list.rows, r.list.src, r.sizes.n_rows, (int32_t)n, &r.t.runs, queue));
  }
  MOE_TRY(plan_relay(call, &r));
  return moe_cuda_pack_forward(&r.sizes, r.list.rows, r.list.pairs, &r.t.relay, call->peer, r.t.in, n, &r.t.runs, lists,
                               cuda_stamp(call), slot, moe_status(call), queue);
}

size_t cuda_pack_forward(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_forward(call, slot));
}

/* What came from rank `peer` of the node goes back to it: GATHER its sums, FORWARD_B gradients. */
static MoeStatus pack_gather(const MoeCall *call, void *slot)
{
  MoeFfnSaved s;
  MoeFfnWork work;
  CudaPackScratch t;
  int32_t peer = call->peer - cuda_node(call).first;
  cuda_ffn_saved(call, &s);
  size_t n = s.list.head->rows;
  moe_ffn_work_carve(call->work, n, s.list.head->pairs, &work);
  cuda_pack_scratch(call->scratch, 0, 0, (size_t)peer + 1, 0, &t);
  MOE_TRY(moe_cuda_src_runs(s.list.rows, s.list.src, n, peer + 1, &t.runs, moe_queue(call)));
  const float *dw = call->edge == MOE_EDGE_FORWARD_B ? work.dw : NULL;
  return moe_cuda_pack_run(&t.runs, peer, NULL, dw, work.rows, n, cuda_stamp(call), slot, moe_queue(call));
}

size_t cuda_pack_gather(MoeCall *call, void *slot)
{
  return cuda_packed(call, pack_gather(call, slot));
}

MoeStatus cuda_node_reduce(MoeCall *call)
{
  Relay r;
  MoeFfnWork work;
  size_t n;
  bool grad = call->edge == MOE_EDGE_FORWARD_B;
  open_relay(call, NULL, &r);
  moe_sum_work_carve(call->work, r.sizes.n_rows, r.list.head->pairs, &work);
  MOE_TRY(cuda_inputs(call, (CudaKind){.pair_bytes = grad ? MOE_GRAD_PAIR : 0}, r.node.first, r.t.in, &n));
  if (n != (size_t)(r.node.last - r.node.first)) {
    return MOE_EPROTO;
  }
  MOE_TRY(plan_relay(call, &r));
  return moe_cuda_node_reduce(&r.sizes, r.list.rows, r.list.pairs, &r.t.relay, r.t.in, work.rows, grad ? work.dw : NULL,
                              moe_status(call), moe_queue(call));
}
