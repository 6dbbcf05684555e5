/* Names of ops, edges, buckets and status codes, from the tables that define them. */
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

const char *moe_bucket_name(MoeBucketKind kind)
{
  return kind < MOE_BUCKET_COUNT ? buckets[kind] : "none";
}

const char *moe_status_text(MoeStatus status)
{
  switch (status) {
#define MOE_STATUS(name, code, text) \
  case MOE_##name:                   \
    return text;
#include "status.def"
#undef MOE_STATUS
  }
  return "unknown status";
}
