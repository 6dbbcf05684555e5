/* Ranks leave start and end of every op in shared memory; the launcher writes them out when all have ended. */
#include "runtime/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/log.h"

static int64_t time_of(const MoeShared *s, int32_t rank, int32_t op, int32_t end)
{
  return atomic_load_explicit(&s->times[((int64_t)rank * s->max_ops + op) * 2 + end], memory_order_relaxed);
}

static void print_rank(FILE *out, const MoeBundle *b, const MoeShared *s, int32_t rank, int64_t origin)
{
  static const char *const streams[MOE_STREAM_COUNT] = {"fwd", "bwd", "send", "recv"};
  MoeRank me = moe_rank_of(b, rank);
  fprintf(out, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d %s\"}}",
          rank > 0 ? ",\n" : "", rank, rank, me.group->name);
  for (int t = 0; t < MOE_STREAM_COUNT; t++) {
    fprintf(out, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", rank, t,
            streams[t]);
  }
  for (int32_t i = 0; i < me.group->n_ops; i++) {
    int64_t start = time_of(s, rank, i, 0);
    int64_t end = time_of(s, rank, i, 1);
    if (end == 0) {
      continue; /* not an op of this rank */
    }
    char name[80];
    moe_op_title(&me.group->ops[i], name, sizeof name);
    const MoeOp *op = &me.group->ops[i];
    fprintf(
        out,
        ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
        "\"args\": {\"op\": %d, \"layer\": %d, \"mb\": %d}}",
        name, moe_op_name(op->kind), rank, op->stream, (double)(start - origin) * 1e-3, (double)(end - start) * 1e-3, i,
        op->layer, op->mb);
  }
}

MoeStatus moe_trace_write(const MoeFile *f, const MoeBundle *b, const MoeShared *s)
{
  int64_t origin = INT64_MAX;
  for (int32_t r = 0; r < s->n_ranks; r++) {
    for (int32_t i = 0; i < moe_rank_of(b, r).group->n_ops; i++) {
      if (time_of(s, r, i, 1) != 0 && time_of(s, r, i, 0) < origin) {
        origin = time_of(s, r, i, 0);
      }
    }
  }
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  if (out == NULL) {
    moe_error("out of memory for the trace");
    return MOE_ENOMEM;
  }
  fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", out);
  for (int32_t r = 0; r < s->n_ranks; r++) {
    print_rank(out, b, s, r, origin);
  }
  fputs("\n]}\n", out);
  MoeStatus status = MOE_ENOMEM;
  if (fclose(out) == 0) {
    status = moe_file_write_at(f, text, n, 0);
  } else {
    moe_error("out of memory for the trace");
  }
  free(text);
  return status;
}
