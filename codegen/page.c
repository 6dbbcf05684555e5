/* The page of a comparison. Its frame and timelines are in page_frame.c, its charts in page_chart.c. */
#include "codegen/page.h"

#include <inttypes.h>
#include <string.h>

#include "codegen/human.h"

enum { MAX_PANELS = 24 };

/* ---- parts ---- */

/* "s4k" or "s4k, nic=25 GB/s"; also what tells timelines apart. */
static const char *where_text(Arena *arena, const Comparison *c, int point, int shape)
{
  const SweepPoint *p = &c->points[point];
  const char *text = compare_row(c, point, shape, 0)->shape->name;
  for (int k = 0; k < p->n; k++) {
    text = arena_printf(arena, "%s%s%s = %s", text, k ? "  " : ", ", p->keys[k], p->values[k]);
  }
  return text;
}

static void print_heading(Arena *arena, const Comparison *c, int point, int shape, FILE *out)
{
  const ShapeSpec *s = compare_row(c, point, shape, 0)->shape;
  fprintf(out, "<h3>");
  page_text(out, where_text(arena, c, point, shape));
  fprintf(out, " <span>seq %" PRId64 ", %d sequences a step</span></h3>\n", s->seq, s->global_batch);
}

typedef void Chart(FILE *, const Comparison *, int point, int shape);

static void print_panels(Arena *arena, const Comparison *c, Chart *chart, FILE *out)
{
  int n = 0;
  fprintf(out, "<div class=\"grid\">\n");
  for (int s = 0; s < c->n_shapes; s++) {
    for (int p = 0; p < c->n_points && n < MAX_PANELS; p++, n++) {
      fprintf(out, "<div class=\"panel\">");
      print_heading(arena, c, p, s, out);
      chart(out, c, p, s);
      fprintf(out, "</div>\n");
    }
  }
  fprintf(out, "</div>\n");
  if (n < c->n_points * c->n_shapes) {
    fprintf(out, "<p class=\"note\">The first %d of %d; the table has them all.</p>\n", n, c->n_points * c->n_shapes);
  }
}

static void print_systems_legend(const Comparison *c, FILE *out)
{
  fprintf(out, "<ul class=\"legend\">");
  for (int k = 0; k < c->n_systems; k++) {
    char style[48];
    snprintf(style, sizeof style, "style=\"fill:var(--s%d)\"", (int)c->systems[k] % 8);
    page_key(out, style, plan_system_name(c->systems[k]));
  }
  fprintf(out, "</ul>\n");
}

/* ---- sections ---- */

static void print_verdicts(Arena *arena, const Comparison *c, FILE *out)
{
  fprintf(out, "<ul class=\"verdicts\">\n");
  for (int i = 0; i < c->n_points * c->n_shapes && i < MAX_PANELS; i++) {
    int s = i / c->n_points, p = i % c->n_points;
    const CompareRow *best = compare_fastest(c, p, s, NULL), *next = compare_fastest(c, p, s, best);
    fprintf(out, "<li>");
    page_text(out, where_text(arena, c, p, s));
    if (!best) {
      fprintf(out, ": no system can run this</li>\n");
      continue;
    }
    char text[HUMAN_MAX];
    fprintf(out, ": <b>%s</b>; a step takes %s", compare_verdict(arena, c, p, s),
            human_time(text, best->metrics.whole.step_ns));
    if (best->vs_megatron > 0 && best->system != SYSTEM_MEGATRON && (!next || next->system != SYSTEM_MEGATRON)) {
      fprintf(out, ", megatron's %.2f times as long", best->vs_megatron);
    }
    fprintf(out, "</li>\n");
  }
  fprintf(out, "</ul>\n");
}

static void print_cells(const CompareRow *row, FILE *out)
{
  const Metrics *m = &row->metrics;
  const TimeSplit *w = &m->whole;
  char text[HUMAN_MAX];
  const double shares[] = {w->compute_ns, w->exposed_ns, w->bubble_ns, w->overlapped_ns, m->exposed_step_ns};
  fprintf(out, "<td>%s</td>", human_time(text, w->step_ns));
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    fprintf(out, "<td>%s</td>", human_percent(text, w->step_ns > 0 ? shares[i] / w->step_ns : 0));
  }
  fprintf(out, "<td>%s</td><td>%.1f</td><td>%.1f</td>", human_percent(text, m->mfu), m->tokens_per_s_gpu,
          m->tokens_per_s_cluster_gpu);
  fprintf(out, "<td>%s</td>", human_bytes(text, (double)m->peak_memory));
  const double ratios[] = {row->vs_megatron, row->vs_best_other};
  for (int i = 0; i < 2; i++) {
    if (ratios[i] > 0) {
      fprintf(out, "<td>%.3fx</td>", ratios[i]);
    } else {
      fprintf(out, "<td>-</td>");
    }
  }
  fprintf(out, "<td>%d</td><td class=\"left\">", row->plan.replicas * row->plan.replica_ranks);
  page_text(out, row->settings);
  fprintf(out, "</td>");
}

static void print_table(Arena *arena, const Comparison *c, FILE *out)
{
  static const char *const heads[] = {"step",     "compute",    "exposed",      "bubble",   "overlapped",
                                      "exposed*", "MFU",        "tokens/s/GPU", "cluster*", "memory",
                                      "megatron", "best other", "GPUs"};
  enum { COLUMNS = sizeof heads / sizeof *heads + 2 };
  fprintf(out, "<div class=\"scroll\"><table><thead><tr><th>system</th>");
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
    fprintf(out, "<th>%s</th>", heads[i]);
  }
  fprintf(out, "<th class=\"left\">settings</th></tr></thead><tbody>\n");
  for (int s = 0; s < c->n_shapes; s++) {
    for (int p = 0; p < c->n_points; p++) {
      const CompareRow *best = compare_fastest(c, p, s, NULL);
      fprintf(out, "<tr class=\"group\"><th colspan=\"%d\">", COLUMNS);
      page_text(out, where_text(arena, c, p, s));
      fprintf(out, "</th></tr>\n");
      for (int k = 0; k < c->n_systems; k++) {
        const CompareRow *row = compare_row(c, p, s, k);
        fprintf(out, "<tr><td%s>%s</td>", row == best ? " class=\"best\"" : "", plan_system_name(row->system));
        if (row->ran) {
          print_cells(row, out);
        } else {
          fprintf(out, "<td class=\"why\" colspan=\"%d\">cannot run: ", COLUMNS - 1);
          page_text(out, row->reason);
          fprintf(out, "</td>");
        }
        fprintf(out, "</tr>\n");
      }
    }
  }
  fprintf(out, "</tbody></table></div>\n");
}

static void print_traffic(const Comparison *c, FILE *out)
{
  int k_rows = c->points[0].spec.model.moe.top_k;
  fprintf(
      out,
      "<h2>Bytes of a token</h2>\n<p class=\"lead\">Forward through all layers, at the settings of the first shape. "
      "With flat copies a token goes once to each of its %d experts: k rows out, k rows back, and where the sum "
      "returns to its origin one more row from stage to stage. The N2M carries that row along: where every layer is "
      "a stage, 1/(k+1) = %.1f %% less than combine and p2p. Deduplication sends fewer rows, so that one row weighs "
      "more.</p>\n",
      k_rows, 100.0 / (k_rows + 1));
  fprintf(out,
          "<div class=\"scroll\"><table><thead><tr><th></th><th colspan=\"5\" class=\"left\">flat, a row per chosen "
          "expert</th><th colspan=\"2\" class=\"left\">once per rank</th><th colspan=\"2\" class=\"left\">once per "
          "node</th><th colspan=\"2\" class=\"left\">as planned</th></tr>\n<tr><th>system</th><th>dispatch, "
          "M2N</th><th>combine, N2M</th><th>p2p</th><th>sum</th><th>over NICs</th><th>sum</th><th>over NICs</th>"
          "<th>sum</th><th>over NICs</th><th>dedup</th><th>backward</th></tr></thead><tbody>\n");
  for (int k = 0; k < c->n_systems; k++) {
    const CompareRow *row = compare_row(c, 0, 0, k);
    if (!row->ran) {
      continue;
    }
    static const Dedup dedups[] = {DEDUP_FLAT, DEDUP_RANK, DEDUP_NODE};
    char text[HUMAN_MAX];
    const Traffic *flat = &row->metrics.by_dedup[DEDUP_FLAT];
    fprintf(out, "<tr><td>%s</td><td>%s</td>", plan_system_name(row->system), human_bytes(text, flat->dispatch));
    fprintf(out, "<td>%s</td>", human_bytes(text, flat->combine));
    fprintf(out, "<td>%s</td>", human_bytes(text, flat->p2p));
    for (int d = 0; d < 3; d++) {
      const Traffic *t = &row->metrics.by_dedup[dedups[d]];
      fprintf(out, "<td>%s</td>", human_bytes(text, traffic_sum(t)));
      fprintf(out, "<td>%s</td>", human_bytes(text, t->nic));
    }
    fprintf(out, "<td>%s</td><td>%s</td></tr>\n", plan_dedup_name(row->plan.dedup),
            human_bytes(text, row->metrics.traffic.backward));
  }
  fprintf(out, "</tbody></table></div>\n");
}

/* ---- timelines ---- */

static void print_timelines(const Comparison *c, FILE *out)
{
  page_begin_timelines(out);
  for (int i = 0, n = 0; i < c->n_points * c->n_shapes * c->n_systems; i++) {
    const CompareRow *row = &c->rows[i];
    if (row->ran && row->timeline.n_groups > 0) {
      page_timeline(out, n++, plan_system_name(row->system), i / c->n_systems, &row->timeline);
    }
  }
  page_end_timelines(out);
}

static void print_timeline_section(Arena *arena, const Comparison *c, FILE *out)
{
  fprintf(out, "<h2>Timelines</h2>\n<p class=\"lead\">One step as modelled, one time axis for all systems. Rows of a "
               "group: compute, sending, receiving. The wheel zooms, dragging moves, a double click shows all.</p>\n");
  page_begin_controls(out);
  for (int s = 0; s < c->n_shapes; s++) {
    for (int p = 0; p < c->n_points; p++) {
      fprintf(out, "<option value=\"%d\">", p * c->n_shapes + s);
      page_text(out, where_text(arena, c, p, s));
      fprintf(out, "</option>");
    }
  }
  page_end_controls(out);
  print_timelines(c, out);
}

/* ---- sweeps ---- */

/* Last point that differs from `first` on the last axis alone. */
static int run_end(const Comparison *c, int first)
{
  const SweepPoint *a = &c->points[first];
  int last = first;
  for (int p = first + 1; p < c->n_points; p++) {
    for (int k = 0; k < a->last_axis; k++) {
      if (strcmp(a->values[k], c->points[p].values[k]) != 0) {
        return last;
      }
    }
    last = p;
  }
  return last;
}

static void print_sweeps(const Comparison *c, FILE *out)
{
  const SweepPoint *point = &c->points[0];
  fprintf(out, "<h2>Over ");
  for (int k = point->last_axis; k < point->n; k++) {
    fprintf(out, "%s%s", k > point->last_axis ? " and " : "", point->keys[k]);
  }
  fprintf(out,
          "</h2>\n<p class=\"lead\">Tokens per second and GPU that works. A gap: that system cannot run it.</p>\n");
  print_systems_legend(c, out);
  fprintf(out, "<div class=\"grid\">\n");
  for (int s = 0; s < c->n_shapes; s++) {
    for (int first = 0; first < c->n_points; first = run_end(c, first) + 1) {
      fprintf(out, "<div class=\"panel\"><h3>");
      page_text(out, compare_row(c, first, s, 0)->shape->name);
      for (int k = 0; k < point->last_axis; k++) {
        fprintf(out, "%s%s = ", k ? "  " : ", ", c->points[first].keys[k]);
        page_text(out, c->points[first].values[k]);
      }
      fprintf(out, "</h3>\n");
      chart_sweep(out, c, first, run_end(c, first), s);
      fprintf(out, "</div>\n");
    }
  }
  fprintf(out, "</div>\n");
}

/* ---- the page ---- */

static void print_head(const Comparison *c, FILE *out)
{
  const Spec *spec = &c->points[0].spec;
  fprintf(out, "<h1>");
  page_text(out, spec->model.name);
  fprintf(out, " on ");
  page_text(out, spec->cluster.name);
  fprintf(out, "</h1>\n<p class=\"lead\">%d layers, %d experts, top %d, hidden %d; %d node%s of %d ",
          spec->model.layers, spec->model.moe.experts, spec->model.moe.top_k, spec->model.hidden, spec->cluster.nodes,
          spec->cluster.nodes == 1 ? "" : "s", spec->cluster.gpus);
  page_text(out, spec->cluster.gpu.name);
  fprintf(out, " and %d NIC%s. Every number here is modelled.</p>\n", spec->cluster.nics,
          spec->cluster.nics == 1 ? "" : "s");
}

static void print_body(Arena *arena, const Comparison *c, FILE *out)
{
  print_head(c, out);
  print_verdicts(arena, c, out);
  if (c->points[0].n) {
    print_sweeps(c, out);
  }
  fprintf(
      out,
      "<h2>Speed</h2>\n<p class=\"lead\">Steps per second, against megatron (where it cannot run: the slowest).</p>\n");
  print_panels(arena, c, chart_speed, out);
  fprintf(
      out,
      "<h2>Where the step goes</h2>\n<p class=\"lead\">Means over the GPUs. Exposed: the network moves something of "
      "a GPU while its compute waits. Bubble: nothing to compute and nothing on the way. The thin bar is "
      "communication that ran under compute.</p>\n<ul class=\"legend\">");
  page_key(out, "class=\"compute\"", "compute");
  page_key(out, "class=\"exposed\"", "exposed communication");
  page_key(out, "class=\"bubble\"", "bubble");
  page_key(out, "class=\"overlapped\"", "overlapped communication");
  fprintf(out, "</ul>\n");
  print_panels(arena, c, chart_times, out);
  fprintf(out, "<h2>Numbers</h2>\n");
  print_table(arena, c, out);
  fprintf(out, "<p class=\"note\">exposed*: the other convention, what the step would lose if the same order "
               "ran with messages that take no time. cluster*: tokens per second over all GPUs of the "
               "cluster, working or not.</p>\n");
  print_traffic(c, out);
  fprintf(out, "<h2>Memory</h2>\n<p class=\"lead\">Of the fullest rank; the line is what the GPU has.</p>\n");
  print_panels(arena, c, chart_memory, out);
  print_timeline_section(arena, c, out);
  fprintf(out, "<h2>Rules of the comparison</h2>\n<ul class=\"rules\">\n");
  for (int i = 0; compare_rules[i]; i++) {
    fprintf(out, "<li>");
    page_text(out, compare_rules[i]);
    fprintf(out, "</li>\n");
  }
  fprintf(out, "</ul>\n");
}

bool page_print(Arena *arena, Diag *diag, const Comparison *c, const char *home, FILE *out)
{
  bool ok = page_begin(arena, diag, home, c->points[0].spec.model.name, "training systems compared", out);
  print_body(arena, c, out);
  return page_end(arena, diag, home, out) && ok;
}
