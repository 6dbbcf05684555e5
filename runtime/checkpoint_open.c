/* Which checkpoint to go on from, and whether it is for this program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/checkpoint_check.h"
#include "runtime/checkpoint_dir.h"
#include "runtime/log.h"
#include "runtime/shapes.h"

enum { LIST_BYTES = 600 };

static MoeStatus out_of_memory(const char *path)
{
  moe_error("%s: out of memory", path);
  return MOE_ENOMEM;
}

/* ---- does it fit the program? ---- */

/* "attention.heads is 4, here 8; ..." for every setting that differs; empty if none does. */
static void list_differences(char *text, const json_t *theirs, const char *lines)
{
  json_t *ours = moe_ck_keys(lines);
  json_t *both = json_deep_copy(theirs);
  const char *key;
  json_t *value;
  size_t at = 0;
  json_object_update_missing(both, ours);
  text[0] = '\0';
  json_object_foreach(both, key, value)
  {
    const char *there = json_string_value(json_object_get(theirs, key));
    const char *here = json_string_value(json_object_get(ours, key));
    if (there != NULL && here != NULL && strcmp(there, here) == 0) {
      continue;
    }
    int n = snprintf(text + at, LIST_BYTES - at, "%s%s is %s, here %s", at > 0 ? "; " : "", key,
                     there != NULL && *there != '\0' ? there : "none", here != NULL && *here != '\0' ? here : "none");
    if (n < 0 || (size_t)n >= LIST_BYTES - at) {
      strcpy(text + (at > LIST_BYTES - 8 ? LIST_BYTES - 8 : at), "; ...");
      break;
    }
    at += (size_t)n;
  }
  json_decref(ours);
  json_decref(both);
}

/* With the same settings, tensors differ only where another version of moec had others. */
static MoeStatus match_tensors(MoeCheckpoint *c, const MoeBundle *b)
{
  const MoeManifest *m = &c->manifest;
  c->tensor_of = calloc((size_t)b->n_params + 1, sizeof *c->tensor_of);
  if (c->tensor_of == NULL) {
    return out_of_memory(c->path);
  }
  for (int32_t i = 0; i < b->n_params; i++) {
    const MoeParam *p = &b->params[i];
    const MoeCkTensor *t = moe_manifest_find(m, p->name);
    int64_t shape[2] = {p->rows, p->cols};
    int32_t n_dims = p->cols > 0 ? 2 : 1;
    if (t == NULL) {
      moe_error("%s: it has no tensor %s", c->path, p->name);
      return MOE_EINVAL;
    }
    if (t->n_dims != n_dims || memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) != 0) {
      char theirs[MOE_ST_SHAPE_TEXT], ours[MOE_ST_SHAPE_TEXT];
      moe_error("%s: its tensor %s is %s, here %s", c->path, p->name, moe_st_shape_text(t->n_dims, t->shape, theirs),
                moe_st_shape_text(n_dims, shape, ours));
      return MOE_EINVAL;
    }
    c->tensor_of[i] = (int32_t)(t - m->tensors);
  }
  if (m->n_tensors != b->n_params) {
    moe_error("%s: it has %d tensors, this model %d", c->path, m->n_tensors, b->n_params);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus compare(MoeCheckpoint *c, const MoeBundle *b)
{
  char differences[LIST_BYTES];
  list_differences(differences, c->manifest.model_keys, b->model_keys);
  if (differences[0] != '\0') {
    moe_error("%s is of another model: %s", c->path, differences);
    return MOE_EINVAL;
  }
  c->same_plan = c->manifest.plan_hash == b->hash;
  return match_tensors(c, b);
}

/* ---- which one? ---- */

/* One checkpoint: its manifest, whether it fits, then, which takes longest, all of its bytes. */
static MoeStatus open_one(MoeCheckpoint *c, const MoeBundle *b, char *path)
{
  *c = (MoeCheckpoint){.path = path};
  MoeStatus status = path != NULL ? moe_ck_read_manifest(c) : out_of_memory("--resume");
  status = status == MOE_OK ? compare(c, b) : status;
  status = status == MOE_OK ? moe_ck_check_files(c) : status;
  if (status != MOE_OK) {
    moe_checkpoint_close(c);
  }
  return status;
}

/* Errors of a damaged one become a note, as long as there is an older one. */
static MoeStatus open_newest(MoeCheckpoint *c, const MoeBundle *b, const char *dir, const int64_t *steps, int32_t n)
{
  for (int32_t i = n - 1; i > 0; i--) {
    char why[MOE_ERROR_TEXT] = "";
    _Atomic uint32_t failed = 0;
    moe_log_to(why, sizeof why, &failed);
    MoeStatus status = open_one(c, b, moe_ck_path(dir, steps[i], ""));
    moe_log_to(NULL, 0, NULL);
    if (status == MOE_OK) {
      return MOE_OK;
    }
    if (status != MOE_EIO) {
      moe_error("%s", why);
      return status;
    }
    moe_note("%s: trying the one before it", why);
  }
  return open_one(c, b, moe_ck_path(dir, steps[0], ""));
}

static MoeStatus tell(const MoeCheckpoint *c, const MoeBundle *b)
{
  char differences[LIST_BYTES];
  moe_note("%s: going on after step %lld, %s", c->path, (long long)c->manifest.step,
           c->same_plan ? "with the same plan" : "with another plan");
  list_differences(differences, c->manifest.train_keys, b->train_keys);
  if (differences[0] != '\0') {
    moe_note("%s was trained with other settings: %s", c->path, differences);
  }
  return MOE_OK;
}

bool moe_ck_is(const char *path)
{
  struct stat status;
  char *manifest = moe_path_in(path, MOE_CK_MANIFEST);
  bool is = manifest != NULL && stat(manifest, &status) == 0;
  free(manifest);
  return is;
}

MoeStatus moe_checkpoint_none(const char *path, bool *none_p)
{
  struct stat status;
  int64_t *steps = NULL;
  int32_t n = 0;
  char *other = NULL;
  *none_p = stat(path, &status) != 0 && errno == ENOENT;
  if (*none_p || moe_ck_is(path)) {
    return MOE_OK;
  }
  MOE_TRY(moe_ck_steps(path, &steps, &n, &other));
  *none_p = n == 0 && other == NULL;
  free(steps);
  free(other);
  return MOE_OK;
}

MoeStatus moe_checkpoint_open(MoeCheckpoint *c, const MoeBundle *b, const char *path)
{
  struct stat of_dir;
  int64_t *steps = NULL;
  int32_t n = 0;
  char *other = NULL;
  *c = (MoeCheckpoint){0};
  bool exists = stat(path, &of_dir) == 0;
  if (!exists || !S_ISDIR(of_dir.st_mode)) {
    moe_error("cannot resume from %s: %s", path, exists ? "it is not a folder" : strerror(errno));
    return MOE_EIO;
  }
  bool named = moe_ck_is(path);
  MoeStatus status = MOE_OK;
  if (!named) {
    status = moe_ck_steps(path, &steps, &n, &other);
  }
  if (status == MOE_OK && !named && n == 0) {
    moe_error("%s holds no checkpoint%s%s", path, other != NULL ? ", but " : "", other != NULL ? other : "");
    status = MOE_EINVAL;
  } else if (status == MOE_OK) {
    status = named ? open_one(c, b, strdup(path)) : open_newest(c, b, path, steps, n);
    c->newest = !named;
  }
  free(steps);
  free(other);
  return status == MOE_OK ? tell(c, b) : status;
}

void moe_checkpoint_close(MoeCheckpoint *c)
{
  for (int32_t i = 0; c->sets != NULL && i < c->manifest.n_files; i++) {
    moe_st_close(&c->sets[i]);
  }
  free(c->sets);
  free(c->tensor_of);
  moe_manifest_free(&c->manifest);
  free(c->path);
  *c = (MoeCheckpoint){0};
}

/* ---- reading ---- */

MoeCkShape moe_checkpoint_shape(const MoeCheckpoint *c, const MoeBundle *shape)
{
  for (int32_t i = 0; i < c->manifest.n_shapes; i++) {
    const MoeCkShape *s = &c->manifest.shapes[i];
    if (strcmp(s->name, shape->shape) == 0 && s->seq == shape->seq) {
      return *s;
    }
  }
  return (MoeCkShape){.name = shape->shape, .seq = shape->seq};
}

/* Elements [from, to) of a parameter. */
static void read_state(const MoeCheckpoint *c, const MoeBundle *b, int32_t param, int state, int64_t from, int64_t to,
                       float *values)
{
  const MoeCkTensor *t = &c->manifest.tensors[c->tensor_of[param]];
  for (int32_t i = t->first_part; i < t->first_part + t->n_parts; i++) {
    const MoeCkPart *p = &c->manifest.parts[i];
    int64_t begin = from > p->begin ? from : p->begin, end = to < p->end ? to : p->end;
    if (begin < end) {
      const uint8_t *data = moe_ck_data(c, b->params[param].name, p, state);
      memcpy(values + (begin - from), data + (size_t)(begin - p->begin) * sizeof(float),
             (size_t)(end - begin) * sizeof(float));
    }
  }
}

static MoeStatus load_state(const MoeCheckpoint *c, const MoeExec *x, const MoeHeld *h, int state)
{
  const MoeBundle *b = x->bundle;
  float *own = (float *)(uintptr_t)moe_ck_state(h, state);
  float *values = x->device->apart ? malloc((size_t)h->n * sizeof *values + 1) : own;
  if (values == NULL) {
    moe_error("out of memory for a checkpoint's values");
    return MOE_ENOMEM;
  }
  for (int32_t i = h->bucket->first_param; i < h->bucket->first_param + h->bucket->n_params; i++) {
    const MoeParam *p = &b->params[i];
    MoeSlice slice = moe_held_slice(h, p);
    if (slice.from < slice.to) {
      read_state(c, b, i, state, slice.from - p->offset, slice.to - p->offset, values + (slice.from - h->begin));
    }
  }
  MoeStatus status = MOE_OK;
  if (values != own) {
    status = moe_device_move(x->device, own, values, (size_t)h->n * sizeof *values);
    free(values);
  }
  return status;
}

static MoeStatus load_held(const MoeCheckpoint *c, const MoeExec *x, MoeHeld *h)
{
  const MoeBundle *b = x->bundle;
  float *w = moe_exec_new_weights(x, h);
  if (w == NULL) {
    return MOE_ENOMEM;
  }
  for (int32_t i = h->bucket->first_param; i < h->bucket->first_param + h->bucket->n_params; i++) {
    read_state(c, b, i, 0, 0, moe_param_elems(&b->params[i]), w + b->params[i].offset);
  }
  for (int k = 0; k < MOE_CK_STATE_COUNT && h->n > 0; k++) {
    MOE_TRY(load_state(c, x, h, k));
  }
  return moe_exec_set_weights(x, h, w);
}

MoeStatus moe_checkpoint_load(const MoeCheckpoint *c, MoeExec *x)
{
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    MOE_TRY(load_held(c, x, &x->mem.held[i]));
  }
  return MOE_OK;
}
