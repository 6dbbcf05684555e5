#include "runtime/checkpoint_save.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint_dir.h"
#include "runtime/crc.h"
#include "runtime/log.h"
#include "runtime/shapes.h"

/* So much is handed to the disk at a time, so that the launcher sees that a long save goes on. */
#define PIECE_BYTES ((uint64_t)32 << 20)
#define POLL_NS     2000000

/* ---- opening ---- */

static MoeStatus out_of_memory(void)
{
  moe_error("out of memory for saving checkpoints");
  return MOE_ENOMEM;
}

/* Where every part lies in the copy, in which the states of a bucket follow each other. Held buckets are in the
   bundle's order, as moe_ck_parts() has them. */
static void place_parts(MoeSaver *s, const MoeMem *mem)
{
  int32_t at = 0;
  const float *states = s->copy;
  for (int32_t i = 0; i < mem->n_held; i++) {
    const MoeHeld *h = &mem->held[i];
    for (; at < s->n_parts; at++) {
      const MoeCkPart *p = &s->parts[at];
      int64_t in_bucket = s->bundle->params[p->tensor].offset + p->begin;
      bool inside = p->tensor >= h->bucket->first_param && p->tensor < h->bucket->first_param + h->bucket->n_params;
      if (!inside) {
        break;
      }
      for (int k = 0; k < MOE_CK_STATE_COUNT; k++) {
        s->data[at * MOE_CK_STATE_COUNT + k] = states + k * h->n + (in_bucket - h->begin);
      }
    }
    states += MOE_CK_STATE_COUNT * h->n;
  }
}

static MoeStatus name_tensors(MoeSaver *s)
{
  for (int32_t i = 0; i < s->n_parts; i++) {
    const MoeCkPart *p = &s->parts[i];
    const MoeParam *param = &s->bundle->params[p->tensor];
    int64_t *size = &s->sizes[2 * (size_t)i];
    bool whole = p->end - p->begin == moe_param_elems(param);
    size[0] = whole ? param->rows : p->end - p->begin;
    size[1] = param->cols;
    for (int k = 0; k < MOE_CK_STATE_COUNT; k++) {
      char *name = NULL;
      if (asprintf(&name, "%s%s", param->name, moe_ck_suffix[k]) < 0) {
        return out_of_memory();
      }
      s->tensors[i * MOE_CK_STATE_COUNT + k] =
          (MoeStTensor){.name = name, .dtype = MOE_ST_F32, .n_dims = whole && param->cols > 0 ? 2 : 1, .shape = size};
    }
  }
  return MOE_OK;
}

uint64_t moe_saver_bytes(const MoeBundle *b, int32_t rank)
{
  uint64_t bytes = 0;
  for (int32_t i = 0; i < b->n_buckets; i++) {
    int32_t k = moe_holder_index(b, &b->buckets[i], rank);
    if (k >= 0) {
      bytes +=
          (uint64_t)moe_part_size(b->buckets[i].elems, b->buckets[i].n_holders, k) * MOE_CK_STATE_COUNT * sizeof(float);
    }
  }
  return bytes;
}

static MoeStatus open_lists(MoeSaver *s, const MoeExec *x)
{
  s->n_parts = moe_ck_parts(s->bundle, s->rank, NULL);
  size_t n = (size_t)s->n_parts * MOE_CK_STATE_COUNT + 1;
  s->parts = calloc(n, sizeof *s->parts);
  s->data = calloc(n, sizeof *s->data);
  s->tensors = calloc(n, sizeof *s->tensors);
  s->sizes = calloc(2 * n, sizeof *s->sizes);
  s->shapes = calloc((size_t)moe_n_shapes(s->bundle), sizeof *s->shapes);
  if (s->parts == NULL || s->data == NULL || s->tensors == NULL || s->sizes == NULL || s->shapes == NULL) {
    return out_of_memory();
  }
  moe_ck_parts(s->bundle, s->rank, s->parts);
  s->copy_bytes = moe_saver_bytes(s->bundle, s->rank) + sizeof *s->copy; /* a rank may own nothing */
  void *copy = mmap(NULL, s->copy_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) {
    return out_of_memory();
  }
  s->copy = copy;
  place_parts(s, &x->mem);
  return name_tensors(s);
}

MoeStatus moe_saver_open(MoeSaver *s, const MoeExec *x, const char *dir, int64_t keep)
{
  *s = (MoeSaver){.bundle = x->bundle,
                  .shared = x->shared,
                  .rank = x->me.rank,
                  .dir = dir,
                  .keep = keep,
                  .delay_us = x->options.save_delay_us};
  return dir != NULL ? open_lists(s, x) : MOE_OK;
}

void moe_saver_close(MoeSaver *s)
{
  if (s->running) {
    atomic_store(&s->quit, true);
    pthread_join(s->thread, NULL);
  }
  for (int32_t i = 0; s->tensors != NULL && i < s->n_parts * MOE_CK_STATE_COUNT; i++) {
    free((char *)(uintptr_t)s->tensors[i].name);
  }
  if (s->copy != NULL) {
    munmap(s->copy, s->copy_bytes);
  }
  free(s->parts);
  free(s->data);
  free(s->tensors);
  free(s->sizes);
  free(s->shapes);
  *s = (MoeSaver){0};
}

/* ---- a rank's own file ---- */

static void beat(const MoeSaver *s)
{
  atomic_fetch_add_explicit(&s->shared->states[s->rank].beats, 1, memory_order_relaxed);
}

/* The header's metadata: whose file it is, and the checksums of its tensors, from which rank 0 makes the manifest. */
static char *checksums(MoeSaver *s)
{
  char *text = malloc((size_t)s->n_parts * MOE_CK_STATE_COUNT * 8 + 1);
  for (int32_t i = 0; text != NULL && i < s->n_parts; i++) {
    MoeCkPart *p = &s->parts[i];
    for (int k = 0; k < MOE_CK_STATE_COUNT; k++) {
      int32_t at = i * MOE_CK_STATE_COUNT + k;
      p->crc[k] = moe_crc32(0, s->data[at], (size_t)(p->end - p->begin) * sizeof(float));
      snprintf(text + 8 * (size_t)at, 9, "%08" PRIx32, p->crc[k]);
    }
    beat(s);
  }
  if (text != NULL && s->n_parts == 0) {
    text[0] = '\0';
  }
  return text;
}

static MoeStatus write_tensor(MoeSaver *s, const MoeStWriter *w, int32_t i)
{
  const uint8_t *bytes = (const uint8_t *)s->data[i];
  const MoeCkPart *p = &s->parts[i / MOE_CK_STATE_COUNT];
  uint64_t n = (uint64_t)(p->end - p->begin) * sizeof(float);
  if (s->delay_us > 0) {
    moe_sleep_until(moe_now_ns() + s->delay_us * 1000);
    beat(s);
  }
  for (uint64_t at = 0; at < n;) {
    uint64_t some = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
    if (atomic_load(&s->quit)) {
      return MOE_EPEER; /* the run is ending for another reason, which has been told */
    }
    MOE_TRY(moe_st_write(w, i, bytes + at, some, at));
    at += some;
    s->written += some;
    if (s->written >= PIECE_BYTES) {
      MOE_TRY(moe_file_sync(&w->file));
      s->written = 0;
      beat(s);
    }
  }
  return MOE_OK;
}

static MoeStatus write_tensors(MoeSaver *s, const char *path, const char *crcs)
{
  char step[24], rank[24];
  snprintf(step, sizeof step, "%lld", (long long)s->moment.step);
  snprintf(rank, sizeof rank, "%d", s->rank);
  const char *metadata[] = {"step", step, "rank", rank, "crc32", crcs, NULL};
  MoeStWriter w;
  MoeStatus status = moe_st_create(&w, path, s->tensors, s->n_parts * MOE_CK_STATE_COUNT, metadata);
  for (int32_t i = 0; status == MOE_OK && i < s->n_parts * MOE_CK_STATE_COUNT; i++) {
    status = write_tensor(s, &w, i);
  }
  status = status == MOE_OK ? moe_st_commit(&w) : status;
  moe_st_abandon(&w);
  return status;
}

static MoeStatus write_own(MoeSaver *s, const char *folder)
{
  char name[MOE_CK_NAME];
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) { /* the first of the ranks makes it */
    moe_error("cannot create %s: %s", folder, strerror(errno));
    return MOE_EIO;
  }
  char *path = moe_path_in(folder, moe_ck_file_name(name, s->rank, s->shared->n_ranks));
  char *crcs = checksums(s);
  MoeStatus status = path != NULL && crcs != NULL ? write_tensors(s, path, crcs) : out_of_memory();
  free(path);
  free(crcs);
  return status;
}

/* ---- the whole ---- */

static MoeStatus wait_for_files(const MoeSaver *s)
{
  for (int32_t r = 0; r < s->shared->n_ranks;) {
    if (atomic_load(&s->shared->states[r].saved) > (uint64_t)s->moment.step) {
      r++;
    } else if (atomic_load(&s->quit)) {
      return MOE_EPEER;
    } else {
      moe_sleep_until(moe_now_ns() + POLL_NS);
    }
  }
  return MOE_OK;
}

/* Reads back what a rank's file says of itself. */
static MoeStatus read_part_file(const char *folder, int32_t rank, int32_t n, MoeCkPart *parts, int32_t n_parts,
                                MoeCkFile *file)
{
  char name[MOE_CK_NAME];
  MoeStSet set;
  char *path = moe_path_in(folder, moe_ck_file_name(name, rank, n));
  MoeStatus status = path != NULL ? moe_ck_read_file(path, file) : out_of_memory();
  status = status == MOE_OK ? moe_st_open(&set, path) : status;
  if (status == MOE_OK) {
    const char *crcs = moe_st_metadata(&set, "crc32");
    for (int32_t i = 0; crcs != NULL && i < n_parts * MOE_CK_STATE_COUNT && strlen(crcs) >= 8; i++, crcs += 8) {
      char hex[9];
      snprintf(hex, sizeof hex, "%.8s", crcs);
      parts[i / MOE_CK_STATE_COUNT].crc[i % MOE_CK_STATE_COUNT] = (uint32_t)strtoul(hex, NULL, 16);
    }
    moe_st_close(&set);
  }
  free(path);
  return status;
}

static int by_place(const void *a, const void *b)
{
  const MoeCkPart *x = a, *y = b;
  return x->tensor != y->tensor ? (x->tensor > y->tensor) - (x->tensor < y->tensor)
                                : (x->begin > y->begin) - (x->begin < y->begin);
}

static MoeStatus gather(MoeSaver *s, const char *folder, MoeManifest *m)
{
  const MoeBundle *b = s->bundle;
  for (int32_t r = 0, at = 0; r < m->n_files; r++) {
    int32_t n = moe_ck_parts(b, r, m->parts + at);
    MOE_TRY(read_part_file(folder, r, m->n_files, m->parts + at, n, &m->files[r]));
    s->bytes += m->files[r].bytes;
    at += n;
  }
  qsort(m->parts, (size_t)m->n_parts, sizeof *m->parts, by_place);
  for (int32_t i = 0, at = 0; i < b->n_params; i++) {
    const MoeParam *p = &b->params[i];
    MoeCkTensor *t = &m->tensors[i];
    *t = (MoeCkTensor){.name = p->name, .n_dims = p->cols > 0 ? 2 : 1, .shape = {p->rows, p->cols}, .first_part = at};
    while (at < m->n_parts && m->parts[at].tensor == i) {
      at++;
    }
    t->n_parts = at - t->first_part;
  }
  return MOE_OK;
}

static MoeStatus write_text(MoeSaver *s, const char *folder, const MoeManifest *m)
{
  size_t n = 0;
  char *text = moe_manifest_text(m, &n);
  char *path = moe_path_in(folder, MOE_CK_MANIFEST);
  MoeStatus status = text != NULL && path != NULL ? moe_file_put(path, text, n) : out_of_memory();
  s->bytes += n;
  free(text);
  free(path);
  return status;
}

static MoeStatus write_manifest(MoeSaver *s, const char *folder)
{
  const MoeBundle *b = s->bundle;
  MoeManifest m = {.step = s->moment.step,
                   .updates = s->moment.updates,
                   .seed = s->moment.seed,
                   .plan_hash = b->hash,
                   .next_lr = s->moment.next_lr,
                   .turn = s->moment.turn,
                   .shapes = s->shapes,
                   .n_shapes = s->moment.n_shapes,
                   .model_keys = moe_ck_keys(b->model_keys),
                   .train_keys = moe_ck_keys(b->train_keys),
                   .options = s->moment.options,
                   .n_files = s->shared->n_ranks,
                   .n_tensors = b->n_params};
  for (int32_t r = 0; r < m.n_files; r++) {
    m.n_parts += moe_ck_parts(b, r, NULL);
  }
  m.files = calloc((size_t)m.n_files, sizeof *m.files);
  m.tensors = calloc((size_t)m.n_tensors + 1, sizeof *m.tensors);
  m.parts = calloc((size_t)m.n_parts + 1, sizeof *m.parts);
  bool room = m.files != NULL && m.tensors != NULL && m.parts != NULL;
  MoeStatus status = room ? gather(s, folder, &m) : out_of_memory();
  status = status == MOE_OK ? write_text(s, folder, &m) : status;
  json_decref(m.model_keys);
  json_decref(m.train_keys);
  free(m.files);
  free(m.tensors);
  free(m.parts);
  return status;
}

static MoeStatus save(MoeSaver *s)
{
  char *folder = moe_ck_path(s->dir, s->moment.step, ".tmp");
  MoeStatus status = folder != NULL ? write_own(s, folder) : out_of_memory();
  if (status == MOE_OK) {
    atomic_store(&s->shared->states[s->rank].saved, (uint64_t)s->moment.step + 1);
    beat(s);
  }
  if (status == MOE_OK && s->rank == 0) {
    status = wait_for_files(s);
    status = status == MOE_OK ? write_manifest(s, folder) : status;
    status = status == MOE_OK ? moe_ck_publish(s->dir, s->moment.step) : status;
    if (status == MOE_OK && s->keep > 0) {
      moe_ck_trim(s->dir, s->moment.step, s->keep);
    }
  }
  free(folder);
  return status;
}

static void *save_main(void *arg)
{
  MoeSaver *s = arg;
  s->status = save(s);
  s->end_ns = moe_now_ns();
  atomic_store(&s->ended, true);
  return NULL;
}

MoeStatus moe_saver_begin(MoeSaver *s, const MoeExec *x, const MoeMoment *moment)
{
  float *to = s->copy;
  for (int32_t i = 0; i < x->mem.n_held; i++) {
    const MoeHeld *h = &x->mem.held[i];
    for (int k = 0; k < MOE_CK_STATE_COUNT && h->n > 0; k++) {
      MOE_TRY(x->device->copy(MOE_LANE_COMPUTE, to, moe_ck_state(h, k), (size_t)h->n * sizeof *to));
      to += h->n;
    }
  }
  MOE_TRY(x->device->wait(MOE_LANE_COMPUTE));
  s->moment = *moment;
  memcpy(s->shapes, moment->shapes, (size_t)moment->n_shapes * sizeof *s->shapes);
  s->begin_ns = moe_now_ns();
  s->bytes = s->written = 0;
  atomic_store(&s->ended, false);
  int error = pthread_create(&s->thread, NULL, save_main, s);
  if (error != 0) {
    moe_error("cannot start the thread that saves: %s", strerror(error));
    return MOE_ENOMEM;
  }
  s->running = true;
  return MOE_OK;
}

MoeStatus moe_saver_check(MoeSaver *s, bool wait, MoeSaved *saved)
{
  saved->step = -1;
  if (!s->running || (!wait && !atomic_load(&s->ended))) {
    return MOE_OK;
  }
  pthread_join(s->thread, NULL);
  s->running = false;
  if (s->status == MOE_OK) {
    *saved = (MoeSaved){s->moment.step, s->bytes, (double)(s->end_ns - s->begin_ns) * 1e-9};
  }
  return s->status;
}
