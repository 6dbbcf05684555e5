/* A comparison as a table for people and as JSON for tools. */
#include <jansson.h>
#include <string.h>

#include "codegen/compare.h"
#include "codegen/human.h"

/* ---- table ---- */

/* "seq=4Ki nic=25 GB/s" */
static int print_point(const SweepPoint *point, int width, FILE *out)
{
  int n = 0;
  char text[256];
  text[0] = 0;
  for (int k = 0; k < point->n && n < (int)sizeof text; k++) {
    n += snprintf(text + n, sizeof text - (size_t)n, "%s%s=%s", k ? " " : "", point->keys[k], point->values[k]);
  }
  return out ? fprintf(out, "%-*s", width, text) : (int)strlen(text) + 2;
}

static void print_ratio(FILE *out, double ratio, int width)
{
  if (ratio > 0) {
    fprintf(out, " %*.3fx", width - 1, ratio);
  } else {
    fprintf(out, " %*s", width, "-");
  }
}

static void print_row(const CompareRow *row, FILE *out)
{
  char text[HUMAN_MAX];
  fprintf(out, "%-16s", plan_system_name(row->system));
  if (!row->ran) {
    fprintf(out, "  cannot run: %s\n", row->reason);
    return;
  }
  const Metrics *m = &row->metrics;
  const TimeSplit *w = &m->whole;
  const double shares[] = {w->compute_ns, w->exposed_ns, w->bubble_ns, w->overlapped_ns};
  fprintf(out, " %9s", human_time(text, w->step_ns));
  for (int i = 0; i < 4; i++) {
    fprintf(out, " %7.1f %%", w->step_ns > 0 ? 100 * shares[i] / w->step_ns : 0);
  }
  fprintf(out, " %6.1f %% %9.1f %10s", 100 * m->mfu, m->tokens_per_s_gpu, human_bytes(text, (double)m->peak_memory));
  print_ratio(out, row->vs_megatron, 8);
  print_ratio(out, row->vs_best_other, 8);
  fprintf(out, " %6d  %s\n", row->plan.replicas * row->plan.replica_ranks, row->settings);
}

/* The fastest and how far the next is. */
static void print_verdict(const Comparison *c, int point, int shape, FILE *out)
{
  Arena *words = arena_new();
  const char *text = compare_verdict(words, c, point, shape);
  fprintf(out, text ? "fastest: %s\n" : "no system can run this\n", text);
  arena_free(words);
}

static void print_shape(const Comparison *c, int shape, FILE *out)
{
  const ShapeSpec *s = compare_row(c, 0, shape, 0)->shape;
  int width = 0;
  for (int p = 0; p < c->n_points && c->points[0].n; p++) {
    int n = print_point(&c->points[p], 0, NULL);
    width = n > width ? n : width;
  }
  fprintf(out, "\nshape %s: seq %lld, micro_batch %d, global_batch %d%s\n", s->name, (long long)s->seq, s->micro_batch,
          s->global_batch, c->points[0].n ? ", where not swept" : "");
  fprintf(out, "%-*s%-16s %9s %9s %9s %9s %9s %8s %9s %10s %8s %8s %6s  %s\n", width, "", "system", "step", "compute",
          "exposed", "bubble", "overlap", "MFU", "tok/s/GPU", "memory", "megatron", "best", "GPUs", "settings");
  for (int p = 0; p < c->n_points; p++) {
    for (int k = 0; k < c->n_systems; k++) {
      if (width) {
        print_point(&c->points[p], width, out);
      }
      print_row(compare_row(c, p, shape, k), out);
    }
    if (width) {
      print_point(&c->points[p], width, out);
    }
    print_verdict(c, p, shape, out);
  }
}

/* What a token moves forward. The settings, and so the numbers, hardly depend on the shape: the first that ran. */
static void print_traffic(const Comparison *c, FILE *out)
{
  const Spec *spec = &c->points[0].spec;
  bool any = false;
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, 0, 0, k);
    if (!row->ran) {
      continue;
    }
    if (!any) {
      fprintf(out,
              "\nbytes of a token, forward, all layers (%s): flat, one row per chosen expert; once per rank; once per "
              "node; and of each what crosses NICs\n%-16s %12s %11s %10s %10s %10s %10s %10s %10s %10s %8s\n",
              row->shape->name, "system", "dispatch/M2N", "combine/N2M", "p2p", "= flat", "by rank", "by node",
              "NIC flat", "NIC rank", "NIC node", "planned");
      any = true;
    }
    char text[HUMAN_MAX];
    const Traffic *by = row->metrics.by_dedup, *flat = &by[DEDUP_FLAT];
    const double cells[] = {flat->dispatch,
                            flat->combine,
                            flat->p2p,
                            traffic_sum(flat),
                            traffic_sum(&by[DEDUP_RANK]),
                            traffic_sum(&by[DEDUP_NODE]),
                            flat->nic,
                            by[DEDUP_RANK].nic,
                            by[DEDUP_NODE].nic};
    fprintf(out, "%-16s", plan_system_name(row->system));
    for (int i = 0; i < (int)(sizeof cells / sizeof *cells); i++) {
      fprintf(out, " %*s", i == 0 ? 12 : i == 1 ? 11 : 10, human_bytes(text, cells[i]));
    }
    fprintf(out, " %8s\n", plan_dedup_name(row->plan.dedup));
  }
  if (any) {
    fprintf(out,
            "combine to the origin and on by p2p moves k + 1 = %d rows where every layer is a stage; the N2M moves k: "
            "1/(k+1) = %.1f %% less with flat copies\n",
            spec->model.moe.top_k + 1, 100.0 / (spec->model.moe.top_k + 1));
  }
}

void compare_print(const Comparison *c, FILE *out)
{
  const Spec *spec = &c->points[0].spec;
  fprintf(out, "%s on %s: %d node%s of %d %s, %d NIC%s each\n", spec->model.name, spec->cluster.name,
          spec->cluster.nodes, spec->cluster.nodes == 1 ? "" : "s", spec->cluster.gpus, spec->cluster.gpu.name,
          spec->cluster.nics, spec->cluster.nics == 1 ? "" : "s");
  for (int s = 0; s < c->n_shapes; s++) {
    print_shape(c, s, out);
  }
  print_traffic(c, out);
  fprintf(out,
          "\nexposed: communication while compute waits; bubble: nothing to compute and nothing on the way; overlap: "
          "communication under compute. Shares of the step, means over GPUs.\n"
          "megatron, best: that step, or the fastest other system's, over this one's.\n"
          "rules of the comparison:\n");
  for (int i = 0; compare_rules[i]; i++) {
    fprintf(out, "  - %s\n", compare_rules[i]);
  }
}

/* ---- JSON ---- */

static json_t *traffic_json(const Traffic *t)
{
  json_t *o = json_object();
  json_object_set_new(o, "dispatch", json_real(t->dispatch));
  json_object_set_new(o, "combine", json_real(t->combine));
  json_object_set_new(o, "p2p", json_real(t->p2p));
  json_object_set_new(o, "nic", json_real(t->nic));
  json_object_set_new(o, "backward", json_real(t->backward));
  return o;
}

static json_t *speedups_json(const Comparison *c, int point, int shape, const CompareRow *row)
{
  json_t *o = json_object();
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *other = compare_row(c, point, shape, k);
    if (other->ran && other != row) {
      json_object_set_new(o, plan_system_name(other->system),
                          json_real(other->metrics.whole.step_ns / row->metrics.whole.step_ns));
    }
  }
  return o;
}

static json_t *sweep_json(const SweepPoint *point)
{
  json_t *o = json_object();
  for (int k = 0; k < point->n; k++) {
    json_object_set_new(o, point->keys[k], json_string(point->values[k]));
  }
  return o;
}

static json_t *groups_json(const Metrics *m)
{
  json_t *list = json_array();
  for (int g = 0; g < m->n_groups; g++) {
    const TimeSplit *s = &m->groups[g];
    json_t *o = json_object();
    json_object_set_new(o, "compute_ns", json_real(s->compute_ns));
    json_object_set_new(o, "overlapped_comm_ns", json_real(s->overlapped_ns));
    json_object_set_new(o, "exposed_comm_ns", json_real(s->exposed_ns));
    json_object_set_new(o, "bubble_ns", json_real(s->bubble_ns));
    json_array_append_new(list, o);
  }
  return list;
}

static void row_numbers(const Comparison *c, int point, int shape, const CompareRow *row, json_t *o)
{
  const Metrics *m = &row->metrics;
  const TimeSplit *w = &m->whole;
  json_t *bytes = json_object();
  json_object_set_new(o, "step_ns", json_integer((json_int_t)w->step_ns));
  json_object_set_new(o, "compute_ns", json_real(w->compute_ns));
  json_object_set_new(o, "overlapped_comm_ns", json_real(w->overlapped_ns));
  json_object_set_new(o, "exposed_comm_ns", json_real(w->exposed_ns));
  json_object_set_new(o, "bubble_ns", json_real(w->bubble_ns));
  json_object_set_new(o, "bubble", json_real(w->step_ns > 0 ? w->bubble_ns / w->step_ns : 0));
  json_object_set_new(o, "exposed_step_ns", json_real(m->exposed_step_ns));
  json_object_set_new(o, "bubble_step_ns", json_real(m->bubble_step_ns));
  json_object_set_new(o, "tail", json_real(m->grad_tail));
  json_object_set_new(o, "mfu", json_real(m->mfu));
  json_object_set_new(o, "tokens_per_s", json_real(m->tokens_per_s));
  json_object_set_new(o, "tokens_per_s_per_gpu", json_real(m->tokens_per_s_gpu));
  json_object_set_new(o, "tokens_per_s_per_cluster_gpu", json_real(m->tokens_per_s_cluster_gpu));
  json_object_set_new(o, "peak_memory", json_integer(m->peak_memory));
  json_object_set_new(o, "memory_limit", json_integer(m->memory_limit));
  json_object_set_new(o, "settings", json_string(row->settings));
  json_object_set_new(o, "gpus", json_integer((json_int_t)row->plan.replicas * row->plan.replica_ranks));
  json_object_set_new(o, "replicas", json_integer(row->plan.replicas));
  json_object_set_new(o, "groups_per_replica", json_integer(row->plan.n_groups));
  json_object_set_new(o, "micro_batches", json_integer(row->plan.micro_batches));
  json_object_set_new(o, "in_flight", json_integer(row->plan.in_flight));
  json_object_set_new(o, "dedup", json_string(plan_dedup_name(row->plan.dedup)));
  json_object_set_new(bytes, "planned", traffic_json(&m->traffic));
  for (int d = 0; d < DEDUP_AUTO; d++) {
    json_object_set_new(bytes, plan_dedup_name((Dedup)d), traffic_json(&m->by_dedup[d]));
  }
  json_object_set_new(o, "bytes_per_token", bytes);
  json_object_set_new(o, "speedup_vs", speedups_json(c, point, shape, row));
  json_object_set_new(o, "groups", groups_json(m));
}

void compare_print_json(const Comparison *c, FILE *out)
{
  const Spec *spec = &c->points[0].spec;
  json_t *o = json_object(), *rows = json_array(), *rules = json_array();
  json_object_set_new(o, "version", json_integer(1));
  json_object_set_new(o, "model", json_string(spec->model.name));
  json_object_set_new(o, "cluster", json_string(spec->cluster.name));
  for (int i = 0; i < c->n_points * c->n_shapes * c->n_systems; i++) {
    const CompareRow *row = &c->rows[i];
    json_t *r = json_object();
    if (row->point->n) {
      json_object_set_new(r, "sweep", sweep_json(row->point));
    }
    json_object_set_new(r, "shape", json_string(row->shape->name));
    json_object_set_new(r, "seq", json_integer(row->shape->seq));
    json_object_set_new(r, "system", json_string(plan_system_name(row->system)));
    json_object_set_new(r, "ran", json_boolean(row->ran));
    if (row->ran) {
      row_numbers(c, i / c->n_systems / c->n_shapes, i / c->n_systems % c->n_shapes, row, r);
    } else {
      json_object_set_new(r, "reason", json_string(row->reason));
    }
    json_array_append_new(rows, r);
  }
  json_object_set_new(o, "rows", rows);
  for (int i = 0; compare_rules[i]; i++) {
    json_array_append_new(rules, json_string(compare_rules[i]));
  }
  json_object_set_new(o, "rules", rules);
  json_dumpf(o, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
  fputc('\n', out);
  json_decref(o);
}
