/* Names of ops, edges, buckets and status codes, from the tables that define them. */
#include <stdio.h>

#include "moe_ops.h"
#include "moe_status.h"

static const struct {
  const char *name, *letters;
} ops[] = {
#define MOE_OP(kind, letters, stream, doc) {#kind, letters},
#include "ops.def"
#undef MOE_OP
};

static const struct {
  const char *name;
  MoePairs pairs;
} edges[] = {
#define MOE_EDGE(name, pairs, reverse, doc) {#name, MOE_PAIRS_##pairs},
#include "edges.def"
#undef MOE_EDGE
};

static const char *const buckets[] = {
#define MOE_BUCKET(kind, per, holders, doc) #kind,
#include "buckets.def"
#undef MOE_BUCKET
};

const char *moe_op_name(MoeOpKind kind)
{
  return ops[kind].name;
}

const char *moe_op_letters(MoeOpKind kind)
{
  return ops[kind].letters;
}

const char *moe_edge_name(MoeEdge edge)
{
  return edge < MOE_EDGE_COUNT ? edges[edge].name : "none";
}

MoePairs moe_edge_pairs(MoeEdge edge)
{
  return edges[edge].pairs;
}

MoeTraffic moe_edge_traffic(MoeEdge edge)
{
  return moe_edge_pairs(edge) == MOE_PAIRS_HOLDERS ? MOE_TRAFFIC_BUCKETS : MOE_TRAFFIC_STEP;
}

const char *moe_bucket_name(MoeBucketKind kind)
{
  return kind < MOE_BUCKET_COUNT ? buckets[kind] : "none";
}

const char *moe_status_text(MoeStatus status)
{
  switch (status) {
#define MOE_STATUS(name, code, text)                                                                                   \
  case MOE_##name:                                                                                                     \
    return text;
#include "status.def"
#undef MOE_STATUS
  }
  return "unknown status";
}

void moe_op_title(const MoeOp *op, char *name, size_t n)
{
  char edge[24] = "";
  char bucket[24] = "";
  char layer[16] = "";
  char mb[16] = "";
  char chunk[16] = "";
  if (op->edge < MOE_EDGE_COUNT) {
    snprintf(edge, sizeof edge, " %s", moe_edge_name(op->edge));
  }
  if (op->bucket < MOE_BUCKET_COUNT) {
    snprintf(bucket, sizeof bucket, " %s", moe_bucket_name(op->bucket));
  }
  if (op->layer >= 0) {
    snprintf(layer, sizeof layer, " l%d", op->layer);
  }
  if (op->mb >= 0) {
    snprintf(mb, sizeof mb, " m%d", op->mb);
  }
  if (op->chunk > 0) {
    snprintf(chunk, sizeof chunk, " c%d", op->chunk);
  }
  snprintf(name, n, "%s%s%s%s%s%s", moe_op_name(op->kind), edge, bucket, layer, mb, chunk);
}
