/* ref_train: loss, gradients and AdamW steps of the fp64 reference, from files to files. See usage() for the options.
 */
#include "tests/ref/ref_model.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/ref_math.h"

static const char USAGE[] =
    "usage: ref_train --config FILE [options]\n"
    "  --config FILE         a .moespec, or lines `key = value` (ref_config.c lists the keys)\n"
    "  --shape NAME          shape of the .moespec (default: its first)\n"
    "  --set KEY=VALUE       overrides one key; may be repeated\n"
    "  --weights FILE        initial weights, or\n"
    "  --init-random SEED    random ones with standard deviation init_std (gains near 1)\n"
    "  --tokens FILE         int32 [n_seqs, seq + 1]: inputs are the first seq of a row, labels the last seq\n"
    "  --labels FILE         int32 [n_seqs, seq] instead of the shifted tokens; negative: does not count.\n"
    "                        The tokens are then [n_seqs, seq]\n"
    "  --batch N             sequences per step (default: all); the file is a whole number of batches\n"
    "  --steps N             AdamW steps, going round the batches (default 0: only loss and gradients of the first)\n"
    "  --grads FILE          gradients of the last batch done, before clipping\n"
    "  --out-weights FILE    weights at the end\n"
    "  --state FILE          AdamW's count and moments: taken up if the file exists, written at the end, so that a "
    "run\n"
    "                        can go on with another shape\n"
    "  --routing FILE        choices, weights and kept flags of the last batch: routing.L.{experts,weights,kept} [T, "
    "K]\n"
    "  --pin-routing FILE    takes the choices from such a file; for one batch only\n"
    "  --logits FILE         logits [n_seqs, seq, vocab] of the last batch\n"
    "  --f32                 writes gradients and weights as F32 instead of F64\n"
    "  --min-margin          prints the smallest gap between the K-th and the next router score\n"
    "Prints one JSON line per step: step, loss, balance_loss, grad_norm, lr, tokens, dropped.\n";

typedef struct Options {
  const char *config, *shape, *weights, *tokens, *labels, *grads, *out_weights, *routing, *pin_routing, *state, *logits;
  const char *set[64];
  int n_set;
  bool random, min_margin;
  uint64_t seed;
  int64_t batch, steps;
  StDtype dtype;
} Options;

static int64_t number(const char *option, const char *text)
{
  char *end;
  long long x = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || x < 0) {
    ref_fail("--%s: '%s' is not a count", option, text);
  }
  return x;
}

static void usage(void)
{
  fputs(USAGE, stderr);
  exit(2);
}

static void read_options(int argc, char **argv, Options *o)
{
  static const struct option LONG[] = {
      {"config", required_argument, NULL, 'c'},      {"shape", required_argument, NULL, 'h'},
      {"set", required_argument, NULL, 'S'},         {"weights", required_argument, NULL, 'w'},
      {"init-random", required_argument, NULL, 'r'}, {"tokens", required_argument, NULL, 't'},
      {"labels", required_argument, NULL, 'l'},      {"batch", required_argument, NULL, 'b'},
      {"steps", required_argument, NULL, 'n'},       {"grads", required_argument, NULL, 'g'},
      {"out-weights", required_argument, NULL, 'o'}, {"routing", required_argument, NULL, 'R'},
      {"pin-routing", required_argument, NULL, 'P'}, {"f32", no_argument, NULL, 'f'},
      {"min-margin", no_argument, NULL, 'm'},        {"state", required_argument, NULL, 's'},
      {"logits", required_argument, NULL, 'L'},      {NULL, 0, NULL, 0}};
  *o = (Options){.dtype = ST_F64};
  const char **text[128] = {['c'] = &o->config,      ['h'] = &o->shape, ['w'] = &o->weights, ['t'] = &o->tokens,
                            ['l'] = &o->labels,      ['g'] = &o->grads, ['R'] = &o->routing, ['P'] = &o->pin_routing,
                            ['o'] = &o->out_weights, ['s'] = &o->state, ['L'] = &o->logits};
  for (int letter; (letter = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
    switch (letter) {
    case 'S':
      if (o->n_set == (int)(sizeof o->set / sizeof o->set[0])) {
        ref_fail("too many --set");
      }
      o->set[o->n_set++] = optarg;
      break;
    case 'r':
      o->random = true;
      o->seed = (uint64_t)number("init-random", optarg);
      break;
    case 'b':
      o->batch = number("batch", optarg);
      break;
    case 'n':
      o->steps = number("steps", optarg);
      break;
    case 'f':
      o->dtype = ST_F32;
      break;
    case 'm':
      o->min_margin = true;
      break;
    default:
      if (letter == '?' || !text[letter]) {
        usage();
      }
      *text[letter] = optarg;
    }
  }
  if (optind != argc || !o->config || o->random == (o->weights != NULL)) {
    usage();
  }
}

static void read_config(const Options *o, RefConfig *c)
{
  const char *end = strrchr(o->config, '.');
  ref_config_default(c);
  if (end && strcmp(end, ".moespec") == 0) {
    ref_config_read_spec(c, o->config, o->shape);
  } else {
    ref_config_read(c, o->config);
  }
  for (int i = 0; i < o->n_set; i++) {
    char key[64];
    size_t n = strcspn(o->set[i], "=");
    if (o->set[i][n] != '=' || n >= sizeof key) {
      ref_fail("--set %s: expected KEY=VALUE", o->set[i]);
    }
    memcpy(key, o->set[i], n);
    key[n] = '\0';
    ref_config_set(c, key, o->set[i] + n + 1);
  }
  ref_config_check(c);
}

/* A file of int32 rows; returns their number. */
static int32_t *read_rows(const char *path, int64_t row, int64_t *n_rows)
{
  FILE *f = fopen(path, "rb");
  if (!f || fseek(f, 0, SEEK_END) != 0) {
    ref_fail("%s: cannot open", path);
  }
  int64_t bytes = ftell(f);
  int64_t row_bytes = row * (int64_t)sizeof(int32_t);
  if (bytes <= 0 || bytes % row_bytes != 0) {
    ref_fail("%s: %lld bytes are not rows of %lld int32", path, (long long)bytes, (long long)row);
  }
  *n_rows = bytes / row_bytes;
  int32_t *all = ref_alloc(bytes, 1);
  rewind(f);
  if (fread(all, 1, (size_t)bytes, f) != (size_t)bytes) {
    ref_fail("%s: cannot read", path);
  }
  fclose(f);
  return all;
}

typedef struct Data {
  int64_t n_seqs;
  int32_t *tokens, *labels; /* [n_seqs, seq] */
} Data;

static void read_data(const Options *o, int64_t seq, Data *d)
{
  int64_t row = seq + (o->labels ? 0 : 1);
  int32_t *rows = read_rows(o->tokens, row, &d->n_seqs);
  d->tokens = ref_alloc(d->n_seqs * seq, sizeof(int32_t));
  if (o->labels) {
    int64_t n = 0;
    d->labels = read_rows(o->labels, seq, &n);
    if (n != d->n_seqs) {
      ref_fail("%s and %s differ in their number of sequences", o->tokens, o->labels);
    }
  } else {
    d->labels = ref_alloc(d->n_seqs * seq, sizeof(int32_t));
  }
  for (int64_t n = 0; n < d->n_seqs; n++) {
    memcpy(d->tokens + n * seq, rows + n * row, (size_t)seq * sizeof(int32_t));
    if (!o->labels) {
      memcpy(d->labels + n * seq, rows + n * row + 1, (size_t)seq * sizeof(int32_t));
    }
  }
  free(rows);
}

static void write_routing(const RefConfig *c, const RefState *s, int64_t t, const char *path)
{
  enum { EXPERTS, WEIGHTS, KEPT, N_KINDS };
  static const char *const NAMES[N_KINDS] = {"experts", "weights", "kept"};
  int64_t pairs = t * c->top_k;
  int n = (int)c->layers * N_KINDS;
  StTensor *tensors = ref_alloc(n, sizeof(StTensor));
  double *values = ref_alloc(n * pairs, sizeof(double));
  char(*names)[32] = ref_alloc(n, sizeof *names);
  for (int i = 0; i < n; i++) {
    const RefLayerState *layer = &s->layers[i / N_KINDS];
    double *at = values + i * pairs;
    for (int64_t j = 0; j < pairs; j++) {
      at[j] = i % N_KINDS == EXPERTS   ? (double)layer->experts[j]
              : i % N_KINDS == WEIGHTS ? layer->weights[j]
                                       : (double)layer->kept[j];
    }
    snprintf(names[i], sizeof names[i], "routing.%d.%s", i / N_KINDS, NAMES[i % N_KINDS]);
    tensors[i] = (StTensor){.name = names[i],
                            .dtype = ST_F64,
                            .n_dims = 2,
                            .shape = {t, c->top_k},
                            .n = pairs,
                            .data = (const uint8_t *)at};
  }
  char error[ST_ERROR_BYTES];
  if (!st_write(path, tensors, n, error)) {
    ref_fail("%s", error);
  }
  free(tensors);
  free(values);
  free(names);
}

static void write_logits(const RefConfig *c, const RefState *s, int64_t n_seqs, const char *path)
{
  const StTensor tensor = {.name = "logits",
                           .dtype = ST_F64,
                           .n_dims = 3,
                           .shape = {n_seqs, c->seq, c->vocab},
                           .n = n_seqs * c->seq * c->vocab,
                           .data = (const uint8_t *)s->logits};
  char error[ST_ERROR_BYTES];
  if (!st_write(path, &tensor, 1, error)) {
    ref_fail("%s", error);
  }
}

static int32_t *read_pinned(const RefConfig *c, int64_t t, const char *path)
{
  char error[ST_ERROR_BYTES];
  StFile file;
  if (!st_read(path, &file, error)) {
    ref_fail("%s", error);
  }
  int64_t pairs = t * c->top_k;
  int32_t *pinned = ref_alloc(c->layers * pairs, sizeof(int32_t));
  for (int64_t l = 0; l < c->layers; l++) {
    char name[48];
    snprintf(name, sizeof name, "routing.%lld.experts", (long long)l);
    const StTensor *tensor = st_find(&file, name);
    if (!tensor || tensor->n != pairs) {
      ref_fail("%s: %s is missing or not [%lld, %lld]", path, name, (long long)t, (long long)c->top_k);
    }
    for (int64_t i = 0; i < pairs; i++) {
      double expert = st_value(tensor, i);
      pinned[l * pairs + i] = expert >= 0 && expert < (double)c->experts ? (int32_t)expert : -1;
    }
  }
  st_free(&file);
  return pinned;
}

static void print_step(const Options *o, const RefConfig *c, const RefState *s, int64_t step, double grad_norm)
{
  printf("{\"step\": %lld, \"loss\": %.17g, \"balance_loss\": %.17g, \"grad_norm\": %.17g, \"lr\": %.17g, "
         "\"tokens\": %lld, \"dropped\": %lld",
         (long long)step, s->loss, s->balance_loss, grad_norm, ref_lr(c, step), (long long)s->valid,
         (long long)s->dropped);
  if (o->min_margin && isfinite(s->min_margin)) {
    printf(", \"min_margin\": %.9g", s->min_margin);
  } else if (o->min_margin) {
    printf(", \"min_margin\": null");
  }
  printf("}\n");
  fflush(stdout);
}

static void load_state(const char *path, int64_t n, RefAdam *adam)
{
  FILE *f = path ? fopen(path, "rb") : NULL;
  if (!f) {
    return;
  }
  adam->m = ref_alloc(n, sizeof(double));
  adam->v = ref_alloc(n, sizeof(double));
  if (fread(&adam->step, sizeof adam->step, 1, f) != 1 || fread(adam->m, sizeof(double), (size_t)n, f) != (size_t)n ||
      fread(adam->v, sizeof(double), (size_t)n, f) != (size_t)n || fgetc(f) != EOF) {
    ref_fail("%s: not a state of %lld parameters", path, (long long)n);
  }
  fclose(f);
}

static void save_state(const char *path, int64_t n, const RefAdam *adam)
{
  FILE *f = path && adam->m ? fopen(path, "wb") : NULL;
  if (!f) {
    return;
  }
  bool ok = fwrite(&adam->step, sizeof adam->step, 1, f) == 1 &&
            fwrite(adam->m, sizeof(double), (size_t)n, f) == (size_t)n &&
            fwrite(adam->v, sizeof(double), (size_t)n, f) == (size_t)n;
  if (fclose(f) != 0 || !ok) {
    ref_fail("%s: cannot write", path);
  }
}

static void train(const Options *o, const RefConfig *c, RefParams *p)
{
  Data data = {0};
  read_data(o, c->seq, &data);
  int64_t n_seqs = o->batch ? o->batch : data.n_seqs;
  if (data.n_seqs % n_seqs != 0) {
    ref_fail("%lld sequences are not a whole number of batches of %lld", (long long)data.n_seqs, (long long)n_seqs);
  }
  int64_t t = n_seqs * c->seq;
  RefState *s = ref_state_new(c, n_seqs, c->seq);
  RefParams *g = ref_params_new(c);
  RefAdam adam = {0};
  load_state(o->state, p->n, &adam);
  int32_t *pinned = o->pin_routing ? read_pinned(c, t, o->pin_routing) : NULL;
  for (int64_t step = 0; step < (o->steps ? o->steps : 1); step++) {
    int64_t first = step % (data.n_seqs / n_seqs) * t;
    RefBatch b = {.n_seqs = n_seqs,
                  .seq = c->seq,
                  .tokens = data.tokens + first,
                  .labels = data.labels + first,
                  .pinned = pinned};
    ref_forward(c, p, &b, s);
    ref_backward(c, p, &b, s, g);
    print_step(o, c, s, step, ref_grad_norm(g));
    if (o->steps) {
      ref_adamw(c, p, g, &adam);
      ref_move_bias(c, p, g);
    }
  }
  if (o->grads) {
    ref_params_save(g, o->grads, o->dtype);
  }
  if (o->routing) {
    write_routing(c, s, t, o->routing);
  }
  if (o->logits) {
    write_logits(c, s, n_seqs, o->logits);
  }
  save_state(o->state, p->n, &adam);
  free(pinned);
  free(adam.m);
  free(adam.v);
  free(data.tokens);
  free(data.labels);
  ref_params_free(g);
  ref_state_free(c, s);
}

int main(int argc, char **argv)
{
  Options o;
  RefConfig c;
  read_options(argc, argv, &o);
  read_config(&o, &c);
  RefParams *p = ref_params_new(&c);
  if (o.random) {
    ref_params_random(p, o.seed, c.init_std);
  } else {
    ref_params_load(p, o.weights);
  }
  if (o.tokens) {
    train(&o, &c, p);
  }
  if (o.out_weights) {
    ref_params_save(p, o.out_weights, o.dtype);
  }
  ref_params_free(p);
  return 0;
}
