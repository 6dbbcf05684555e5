/* The fit. An op takes the longer of its FLOPs and its bytes, and a launch; which of the two it is decided by the fit
   so far, so that each round is a linear problem. Where runs differ in a size that a rate depends on (rows of a
   product, rows per expert, sequence length), the rate is fitted at each size: a curve. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/calibrate.h"
#include "codegen/median.h"

enum { ROUNDS = 60, SWEEPS = 4000 };

/* Of FLOPs, each with rates of its own. */
enum { GEMM, GROUPED, ATTENTION, ATTENTION_BACK, GROUPED_DGRAD, GROUPED_WGRAD, N_CLASSES };

static const double outlier = 0.25; /* relative error from which on an op's weight falls */

void calibrate_nnls(Arena *arena, const double *a, const double *b, int rows, int n, double *x)
{
  double *g = arena_new_array(arena, double, (size_t)(n * n + 1)), *h = arena_new_array(arena, double, (size_t)n + 1);
  double *scale = arena_new_array(arena, double, (size_t)n + 1);
  for (int j = 0; j < n; j++) { /* columns of length 1: units differ by many orders of magnitude */
    for (int r = 0; r < rows; r++) {
      scale[j] += a[r * n + j] * a[r * n + j];
    }
    scale[j] = scale[j] > 0 ? 1 / sqrt(scale[j]) : 0;
    x[j] = 0;
  }
  for (int j = 0; j < n; j++) {
    for (int r = 0; r < rows; r++) {
      h[j] += a[r * n + j] * scale[j] * b[r];
      for (int k = 0; k < n; k++) {
        g[j * n + k] += a[r * n + j] * scale[j] * a[r * n + k] * scale[k];
      }
    }
  }
  for (int sweep = 0; sweep < SWEEPS; sweep++) { /* one unknown after the other */
    double moved = 0, most = 0;
    for (int j = 0; j < n; j++) {
      double slope = h[j];
      for (int k = 0; k < n; k++) {
        slope -= g[j * n + k] * x[k];
      }
      double next = scale[j] > 0 ? x[j] + slope / g[j * n + j] : 0;
      next = next > 0 ? next : 0;
      moved = fmax(moved, fabs(next - x[j]));
      most = fmax(most, next);
      x[j] = next;
    }
    if (moved <= 1e-12 * most) {
      break;
    }
  }
  for (int j = 0; j < n; j++) {
    x[j] *= scale[j];
  }
}

/* ---- compute ---- */

/* Sizes of a class that occur, ascending; each has an unknown of its own. */
typedef struct Class {
  double sizes[CURVE_POINTS];
  int n, first;
} Class;

typedef struct Fit {
  const Calibration *cal;
  Class classes[N_CLASSES];
  int memory, launch, n; /* unknowns */
} Fit;

/* FLOPs of an op in a class and the size that its rate depends on. */
static double flops_of(const Work *w, int class, double *size)
{
  const double flops[N_CLASSES] = {w->gemm,           w->grouped,       w->attention,
                                   w->attention_back, w->grouped_dgrad, w->grouped_wgrad};
  const double sizes[N_CLASSES] = {w->rows,        w->expert_rows, (double)w->seq,
                                   (double)w->seq, w->expert_rows, w->expert_rows};
  *size = sizes[class] >= 1 ? sizes[class] : 1;
  return flops[class];
}

static int place_of(const Class *c, double size)
{
  int best = 0;
  for (int i = 1; i < c->n; i++) {
    best = fabs(log(c->sizes[i] / size)) < fabs(log(c->sizes[best] / size)) ? i : best;
  }
  return c->first + best;
}

/* Sizes within 10 % count as one. */
static void find_sizes(Fit *f, int class)
{
  Class *c = &f->classes[class];
  for (int i = 0; i < f->cal->n_ops; i++) {
    double size;
    bool known = flops_of(&f->cal->ops[i].work, class, &size) <= 0 || c->n == CURVE_POINTS;
    for (int k = 0; k < c->n && !known; k++) {
      known = fabs(log(c->sizes[k] / size)) < 0.1;
    }
    if (!known) {
      c->sizes[c->n++] = size;
    }
  }
  sort_numbers(c->sizes, c->n);
  c->first = f->n;
  f->n += c->n;
}

static double flop_ns(const Fit *f, const Work *w, const double *x)
{
  double ns = 0;
  for (int k = 0; k < N_CLASSES; k++) {
    double size, flops = flops_of(w, k, &size);
    ns += flops > 0 ? flops * x[place_of(&f->classes[k], size)] : 0;
  }
  return ns;
}

/* The row of an op: what its time is made of. */
static void fill_row(const Fit *f, const CalOp *o, bool by_bytes, double weight, double *row)
{
  memset(row, 0, (size_t)f->n * sizeof *row);
  for (int k = 0; k < N_CLASSES && !by_bytes; k++) {
    double size, flops = flops_of(&o->work, k, &size);
    if (flops > 0) {
      row[place_of(&f->classes[k], size)] += flops * weight;
    }
  }
  if (by_bytes) {
    row[f->memory] = o->work.bytes * weight;
  }
  row[f->launch] = weight;
}

static double model_ns(const Fit *f, const CalOp *o, const double *x)
{
  return fmax(flop_ns(f, &o->work, x), o->work.bytes * x[f->memory]) + x[f->launch];
}

/* Share of its run's time that ops like this one take, as a weight. */
static double *shares_of(Arena *arena, const Calibration *cal)
{
  double *total = arena_new_array(arena, double, (size_t)cal->n_runs + 1);
  double *share = arena_new_array(arena, double, (size_t)cal->n_ops + 1);
  for (int i = 0; i < cal->n_ops; i++) {
    total[cal->ops[i].run] += cal->ops[i].n * cal->ops[i].ns;
  }
  for (int i = 0; i < cal->n_ops; i++) {
    share[i] = sqrt(cal->ops[i].n * cal->ops[i].ns / total[cal->ops[i].run]);
  }
  return share;
}

/* From a first guess `x` to a fit in place; returns its error. */
static double refine(Arena *arena, const Fit *f, const double *share, double *x)
{
  const Calibration *cal = f->cal;
  size_t n = (size_t)cal->n_ops;
  double *a = arena_new_array(arena, double, n *(size_t)f->n), *b = arena_new_array(arena, double, n);
  double *best = arena_new_array(arena, double, (size_t)f->n), least = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    double error = 0;
    for (int i = 0; i < cal->n_ops; i++) {
      const CalOp *o = &cal->ops[i];
      double miss = fabs(model_ns(f, o, x) / o->ns - 1), weight = share[i] / o->ns;
      error += share[i] * share[i] * (miss < outlier ? miss * miss : outlier * (2 * miss - outlier));
      weight *= round > 0 && miss > outlier ? sqrt(outlier / miss) : 1;
      fill_row(f, o, o->work.bytes * x[f->memory] > flop_ns(f, &o->work, x), weight, a + (size_t)i * (size_t)f->n);
      b[i] = o->ns * weight;
    }
    if (error < least) {
      least = error;
      memcpy(best, x, (size_t)f->n * sizeof *x);
    }
    Arena *scratch = arena_new();
    double *next = arena_new_array(scratch, double, (size_t)f->n);
    calibrate_nnls(scratch, a, b, cal->n_ops, f->n, next);
    for (int k = 0; k < f->n; k++) { /* what no op says this round stays as it was */
      x[k] = next[k] > 0 ? next[k] : k == f->launch ? 0 : x[k];
    }
    arena_free(scratch);
  }
  memcpy(x, best, (size_t)f->n * sizeof *x);
  return least;
}

/* First guesses: the given description, with memory so much faster or slower than it says. */
static void guess(const Fit *f, const GpuSpec *gpu, double memory, double *x)
{
  const double share[N_CLASSES] = {gpu->eff_gemm,      gpu->eff_grouped, gpu->eff_attention,
                                   gpu->eff_attention, gpu->eff_grouped, gpu->eff_grouped};
  double scale = 0;
  for (int k = 0; k < N_CLASSES; k++) {
    for (int i = 0; i < f->classes[k].n; i++) {
      x[f->classes[k].first + i] = 1e9 / (gpu->flops * share[k]);
    }
  }
  x[f->memory] = 1e9 / (gpu->hbm * gpu->eff_memory);
  x[f->launch] = 0;
  for (int i = 0; i < f->cal->n_ops; i++) { /* as fast as the machine is on the whole */
    scale += log(f->cal->ops[i].ns / fmax(1, model_ns(f, &f->cal->ops[i], x))) / f->cal->n_ops;
  }
  for (int k = 0; k < f->n; k++) {
    x[k] *= exp(scale) * (k == f->memory ? memory : 1);
  }
}

/* Rates as shares of the peak; the peak rises where a rate is above it. */
static void set_class(const Class *c, const double *x, double *constant, Curve *curve, double flops)
{
  double sum = 0;
  curve->n = 0;
  for (int i = 0; i < c->n; i++) {
    curve->x[curve->n] = round(c->sizes[i]);
    curve->y[curve->n++] = fmin(1, 1e9 / (flops * x[c->first + i]));
    sum += curve->y[i] / c->n;
  }
  *constant = c->n ? sum : *constant;
  curve->n = c->n > 1 ? c->n : 0;
}

/* Mean over the sizes that both classes have of how much faster the second is; `otherwise` if there are none. */
static double relative_rate(const Class *forward, const Class *c, const double *x, double otherwise)
{
  double sum = 0;
  int n = 0;
  for (int i = 0; i < c->n; i++) {
    for (int k = 0; k < forward->n; k++) {
      if (forward->sizes[k] == c->sizes[i]) {
        sum += log(x[forward->first + k] / x[c->first + i]);
        n++;
      }
    }
  }
  return n ? fmin(10, exp(sum / n)) : otherwise;
}

static void fit_compute(Arena *arena, const Calibration *cal, GpuSpec *gpu, CalFit *out)
{
  static const double guesses[] = {1, 0.1, 10};
  Fit f = {.cal = cal};
  for (int k = 0; k < N_CLASSES; k++) {
    find_sizes(&f, k);
  }
  f.memory = f.n++;
  f.launch = f.n++;
  double *share = shares_of(arena, cal), *x = arena_new_array(arena, double, (size_t)f.n), least = INFINITY;
  double *best = arena_new_array(arena, double, (size_t)f.n);
  for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++) {
    guess(&f, gpu, guesses[i], x);
    double error = refine(arena, &f, share, x);
    if (error < least) {
      least = error;
      memcpy(best, x, (size_t)f.n * sizeof *x);
    }
  }
  for (int k = 0; k < f.memory; k++) {
    gpu->flops = fmax(gpu->flops, 1e9 / best[k]);
  }
  set_class(&f.classes[GEMM], best, &gpu->eff_gemm, &gpu->eff_gemm_rows, gpu->flops);
  set_class(&f.classes[GROUPED], best, &gpu->eff_grouped, &gpu->eff_grouped_rows, gpu->flops);
  set_class(&f.classes[ATTENTION], best, &gpu->eff_attention, &gpu->eff_attention_seq, gpu->flops);
  gpu->eff_grouped_dgrad = relative_rate(&f.classes[GROUPED], &f.classes[GROUPED_DGRAD], best, gpu->eff_grouped_dgrad);
  gpu->eff_grouped_wgrad = relative_rate(&f.classes[GROUPED], &f.classes[GROUPED_WGRAD], best, gpu->eff_grouped_wgrad);
  double back = gpu->eff_attention;
  set_class(&f.classes[ATTENTION_BACK], best, &back, &gpu->eff_attention_back_seq, gpu->flops);
  if (f.classes[ATTENTION_BACK].n == 1) { /* there is no constant for it alone */
    gpu->eff_attention_back_seq = (Curve){.n = 1, .x = {round(f.classes[ATTENTION_BACK].sizes[0])}, .y = {back}};
  }
  gpu->hbm = fmax(gpu->hbm, 1e9 / best[f.memory]);
  gpu->eff_memory = 1e9 / best[f.memory] / gpu->hbm;
  gpu->launch_ns = best[f.launch];
  *out = (CalFit){.gemm = f.classes[GEMM].n > 0,
                  .grouped = f.classes[GROUPED].n > 0,
                  .attention = f.classes[ATTENTION].n > 0,
                  .attention_back = f.classes[ATTENTION_BACK].n > 0,
                  .memory = true,
                  .launch = true};
}

/* ---- messages ---- */

static bool of_tail(const CalMsg *m)
{
  return m->edge == MOE_EDGE_REDUCE || m->edge == MOE_EDGE_SHARE;
}

/* Rate and latency of one kind of link, from messages whose time is that link's; from those of the step's tail, which
   often wait for a slower rank, only if there are no others. Messages of one size cannot tell latency from rate: then
   the latency stays. */
static bool fit_link(Arena *arena, const Calibration *cal, const ClusterSpec *c, bool far, double *rate,
                     double *latency_ns)
{
  size_t n = (size_t)cal->n_msgs + 1;
  double *a = arena_new_array(arena, double, 2 * n), *b = arena_new_array(arena, double, n), x[2] = {0};
  double least = INFINITY, most = 0;
  bool tail = true;
  for (int i = 0; i < cal->n_msgs; i++) {
    tail = tail && (of_tail(&cal->msgs[i]) || cal->msgs[i].far != far);
  }
  for (int round = 0; round < 20; round++) {
    int rows = 0;
    for (int i = 0; i < cal->n_msgs; i++) {
      const CalMsg *m = &cal->msgs[i];
      const ClusterSpec *own = &cal->runs[m->run].spec.cluster;
      double nic = m->nic_ns * own->nic, nvlink = m->nvlink_ns * own->nvlink, bytes = far ? nic : nvlink;
      if (m->far != far || of_tail(m) != tail || (far && nic / c->nic < nvlink / c->nvlink)) {
        continue;
      }
      double weight = sqrt(m->n * m->ns) / m->ns, miss = fabs((bytes * x[0] + x[1]) / m->ns - 1);
      weight *= round > 0 && miss > outlier ? sqrt(outlier / miss) : 1;
      least = fmin(least, bytes);
      most = fmax(most, bytes);
      a[2 * rows] = bytes * weight;
      a[2 * rows + 1] = weight;
      b[rows++] = m->ns * weight;
    }
    if (rows == 0) {
      return false;
    }
    bool one_size = most < 1.5 * least;
    for (int r = 0; r < rows && one_size; r++) {
      b[r] = fmax(0, b[r] - *latency_ns * a[2 * r + 1]);
      a[2 * r + 1] = 0;
    }
    calibrate_nnls(arena, a, b, rows, 2, x);
    x[1] = one_size ? *latency_ns : x[1];
  }
  *latency_ns = x[0] > 0 ? x[1] : *latency_ns;
  *rate = x[0] > 0 ? 1 / x[0] : *rate;
  return x[0] > 0;
}

/* Four digits: a measurement has no more. */
static double digits(double x)
{
  char text[32];
  snprintf(text, sizeof text, "%.4g", x);
  return strtod(text, NULL);
}

static void round_all(ClusterSpec *c)
{
  GpuSpec *gpu = &c->gpu;
  double *const numbers[] = {&gpu->flops,
                             &gpu->hbm,
                             &gpu->launch_ns,
                             &gpu->eff_gemm,
                             &gpu->eff_grouped,
                             &gpu->eff_memory,
                             &c->nvlink,
                             &c->nic,
                             &gpu->eff_attention,
                             &c->nvlink_ns,
                             &c->nic_ns,
                             &gpu->eff_grouped_dgrad,
                             &gpu->eff_grouped_wgrad};
  Curve *const curves[] = {&gpu->eff_gemm_rows, &gpu->eff_grouped_rows, &gpu->eff_attention_seq,
                           &gpu->eff_attention_back_seq};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    *numbers[i] = digits(*numbers[i]);
  }
  for (size_t i = 0; i < sizeof curves / sizeof *curves; i++) {
    for (int k = 0; k < curves[i]->n; k++) {
      curves[i]->y[k] = digits(curves[i]->y[k]);
    }
  }
}

void calibrate_fit(Arena *arena, const Calibration *cal, ClusterSpec *cluster, CalFit *out)
{
  fit_compute(arena, cal, &cluster->gpu, out);
  out->nvlink = fit_link(arena, cal, cluster, false, &cluster->nvlink, &cluster->nvlink_ns);
  out->nic = fit_link(arena, cal, cluster, true, &cluster->nic, &cluster->nic_ns);
  round_all(cluster);
}

double calibrate_op_ns(const Calibration *cal, const CalOp *o, const ClusterSpec *cluster)
{
  Spec view = cal->runs[o->run].spec;
  view.cluster = *cluster;
  return work_ns(&view, o->work);
}

double calibrate_msg_ns(const Calibration *cal, const CalMsg *m, const ClusterSpec *cluster)
{
  const ClusterSpec *own = &cal->runs[m->run].spec.cluster;
  double nic = m->nic_ns > 0 ? m->nic_ns * own->nic / cluster->nic : 0;
  double nvlink = m->nvlink_ns > 0 ? m->nvlink_ns * own->nvlink / cluster->nvlink : 0;
  return fmax(nic, nvlink) + (m->far ? cluster->nic_ns : cluster->nvlink_ns);
}
