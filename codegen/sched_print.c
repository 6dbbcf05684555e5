/* Printers: one line per group for people, JSON and Chrome trace events for tools. Same schedule, same bytes. */
#include "codegen/cost.h"
#include "codegen/sched.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static const char *const stream_names[] = {"fwd", "bwd", "send", "recv"};

static const char *group_name(const Plan *plan, int g, char buffer[32])
{
  const PlanGroup *group = &plan->groups[g];
  snprintf(buffer, 32, "%s%s%d", group->role & PLAN_A ? "A" : "", group->role & PLAN_F ? "F" : "", group->index);
  return buffer;
}

/* "a3.0": letters, layer, micro-batch; "f3.0.1" the second chunk. Buckets of the tail: "gATT.3"; scalars: "n". */
static void op_text(const MoeOp *op, char buffer[48])
{
  const char *letters = moe_op_letters(op->kind);
  if (op->mb >= 0 && op->chunk > 0) {
    snprintf(buffer, 48, "%s%d.%d.%d", letters, op->layer, op->mb, op->chunk);
  } else if (op->mb >= 0) {
    snprintf(buffer, 48, "%s%d.%d", letters, op->layer, op->mb);
  } else if (op->bucket < MOE_BUCKET_NONE) {
    snprintf(buffer, 48, "%s%s.%d", letters, moe_bucket_name(op->bucket), op->layer);
  } else {
    snprintf(buffer, 48, "%s", letters);
  }
}

static bool is_compute(const MoeOp *op)
{
  return op->stream == MOE_STREAM_FWD || op->stream == MOE_STREAM_BWD;
}

void sched_print(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  enum { WIDTH = 120 };
  int messages = 0, ops = 0;
  for (int g = 0; g < sched->n_groups; g++) {
    for (int i = 0; i < sched->groups[g].n_ops; i++) {
      messages += sched->groups[g].ops[i].kind == MOE_OP_SEND;
      ops++;
    }
  }
  fprintf(out, "%s, shape %s: %d micro-batch%s, %d in flight, %d ops (%d message rows), step %.3f ms\n",
          plan_system_name(plan->system), plan->shape ? plan->shape->name : "?", plan->micro_batches,
          plan->micro_batches == 1 ? "" : "es", sched->in_flight, ops, 2 * messages, (double)sched->step_ns * 1e-6);
  (void)spec;
  for (int g = 0; g < sched->n_groups; g++) {
    const SchedGroup *group = &sched->groups[g];
    char name[32], text[48];
    int column = fprintf(out, "%s:", group_name(plan, g, name)), indent = column;
    for (int i = 0; i < group->n_ops; i++) {
      if (!is_compute(&group->ops[i])) {
        continue;
      }
      op_text(&group->ops[i], text);
      int n = (int)strlen(text) + 1;
      if (column + n > WIDTH) {
        fprintf(out, "\n%*s", indent, "");
        column = indent;
      }
      fprintf(out, " %s", text);
      column += n;
    }
    fprintf(out, "\n%*s slots: attention %d saved %d work, FFN %d saved %d work\n", indent, "", group->att_saved,
            group->att_work, group->ffn_saved, group->ffn_work);
  }
}

static json_t *groups_json(const Spec *spec, const Plan *plan)
{
  json_t *groups = json_array();
  for (int g = 0; g < plan->n_groups; g++) {
    const PlanGroup *group = &plan->groups[g];
    json_t *ranks = json_array(), *layers = json_array();
    for (int r = 0; r < group->n_ranks; r++) {
      json_array_append_new(ranks, json_integer(group->first_rank + r));
    }
    for (int layer = 0; layer < spec->model.layers; layer++) {
      bool has = false;
      for (int way = 0; way < plan->ways; way++) {
        has |= plan_att(spec, plan, way, layer) == g || plan_ffn(spec, plan, way, layer) == g;
      }
      if (has) {
        json_array_append_new(layers, json_integer(layer));
      }
    }
    char role[4] = "";
    strcat(role, group->role & PLAN_A ? "A" : "");
    strcat(role, group->role & PLAN_F ? "F" : "");
    json_array_append_new(groups, json_pack("{s:i,s:s,s:i,s:o,s:o}", "id", group->id, "role", role, "index",
                                            group->index, "ranks", ranks, "layers", layers));
  }
  return groups;
}

static void set_or_null(json_t *object, const char *key, bool set, json_int_t value)
{
  json_object_set_new(object, key, set ? json_integer(value) : json_null());
}

/* Bytes of a message by edge and layer, [MOE_EDGE_COUNT][layers]; -1: not asked for yet. Both directions of a plan with
   two have the same. */
static double message_bytes(const Spec *spec, const Plan *plan, const MoeOp *op, double *known)
{
  double *bytes = &known[op->edge * spec->model.layers + op->layer];
  if (*bytes < 0) {
    *bytes = cost_msg(spec, plan, op->edge, op->layer).bytes;
  }
  return *bytes;
}

/* Ids count over all groups, in table order. deps are waits and, of a compute op, the compute op above it. */
static json_t *op_json(const Spec *spec, const Plan *plan, const SchedGroup *group, int g, int base, int i, int above,
                       double *known)
{
  const MoeOp *op = &group->ops[i];
  bool send = op->kind == MOE_OP_SEND, message = send || op->kind == MOE_OP_RECV;
  json_t *deps = json_array();
  if (is_compute(op) && above >= 0) {
    json_array_append_new(deps, json_integer(base + above));
  }
  for (int k = 0; k < MOE_MAX_WAITS; k++) {
    if (op->wait[k] >= 0) {
      json_array_append_new(deps, json_integer(base + op->wait[k]));
    }
  }
  char kind[48];
  snprintf(kind, sizeof kind, "%s%s%s%s%s", moe_op_name(op->kind), op->edge < MOE_EDGE_NONE ? " " : "",
           op->edge < MOE_EDGE_NONE ? moe_edge_name(op->edge) : "", op->bucket < MOE_BUCKET_NONE ? " " : "",
           op->bucket < MOE_BUCKET_NONE ? moe_bucket_name(op->bucket) : "");
  json_t *object = json_object();
  json_object_set_new(object, "id", json_integer(base + i));
  json_object_set_new(object, "group", json_integer(g));
  json_object_set_new(object, "stream", json_string(stream_names[op->stream]));
  json_object_set_new(object, "kind", json_string(kind));
  set_or_null(object, "layer", op->layer >= 0, op->layer);
  set_or_null(object, "mb", op->mb >= 0, op->mb);
  json_object_set_new(object, "chunk", json_integer(op->chunk));
  json_object_set_new(object, "deps", deps);
  set_or_null(object, "src", message && op->peer >= 0, send ? g : op->peer);
  set_or_null(object, "dst", message && op->peer >= 0, send ? op->peer : g);
  double bytes = message && op->mb >= 0 ? message_bytes(spec, plan, op, known) : 0;
  set_or_null(object, "bytes", message && op->mb >= 0, (json_int_t)bytes);
  json_object_set_new(object, "start_ns", json_integer(group->start_ns[i]));
  json_object_set_new(object, "end_ns", json_integer(group->end_ns[i]));
  return object;
}

void sched_print_json(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  json_t *groups = groups_json(spec, plan);
  size_t n_known = (size_t)(MOE_EDGE_COUNT * spec->model.layers);
  Arena *arena = arena_new();
  double *known = arena_new_array(arena, double, n_known);
  for (size_t i = 0; i < n_known; i++) {
    known[i] = -1;
  }
  fprintf(out,
          "{\"version\": 1, \"shape\": \"%s\", \"system\": \"%s\", \"step_ns\": %" PRId64 ", \"pipe_ns\": %" PRId64
          ", \"in_flight\": %d,\n",
          plan->shape ? plan->shape->name : "", plan_system_name(plan->system), sched->step_ns, sched->pipe_ns,
          sched->in_flight);
  fprintf(out, "\"groups\": ");
  json_dumpf(groups, out, 0);
  json_decref(groups);
  fprintf(out, ",\n\"ops\": [");
  const char *separator = "\n";
  for (int g = 0, base = 0; g < sched->n_groups; g++) {
    for (int i = 0, above = -1; i < sched->groups[g].n_ops; i++) {
      json_t *object = op_json(spec, plan, &sched->groups[g], g, base, i, above, known);
      fputs(separator, out);
      json_dumpf(object, out, 0);
      json_decref(object);
      separator = ",\n";
      above = is_compute(&sched->groups[g].ops[i]) ? i : above;
    }
    base += sched->groups[g].n_ops;
  }
  fprintf(out, "\n]}\n");
  arena_free(arena);
}

void sched_print_trace(const Spec *spec, const Plan *plan, const Schedule *sched, FILE *out)
{
  (void)spec;
  fprintf(out, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
  const char *separator = "\n";
  for (int g = 0; g < sched->n_groups; g++) {
    const SchedGroup *group = &sched->groups[g];
    char name[32], title[80];
    fprintf(out, "%s{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"%s\"}}", separator,
            g, group_name(plan, g, name));
    separator = ",\n";
    for (int stream = 0; stream < MOE_STREAM_COUNT; stream++) {
      fprintf(out,
              "%s{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
              separator, g, stream, stream_names[stream]);
    }
    for (int i = 0; i < group->n_ops; i++) {
      const MoeOp *op = &group->ops[i];
      int64_t start = group->start_ns[i], ns = group->end_ns[i] - start;
      moe_op_title(op, title, sizeof title);
      fprintf(out,
              "%s{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %" PRId64
              ".%03d, \"dur\": %" PRId64 ".%03d, \"args\": {\"op\": %d, \"layer\": %d, \"mb\": %d}}",
              separator, title, moe_op_name(op->kind), g, op->stream, start / 1000, (int)(start % 1000), ns / 1000,
              (int)(ns % 1000), i, op->layer, op->mb);
    }
  }
  fprintf(out, "\n]}\n");
}
