#include "runtime/hf_save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/hf_numbers.h"
#include "runtime/log.h"
#include "runtime/moe_link.h"

static MoeStatus out_of_memory(const char *path)
{
  moe_error("out of memory for the tensors of %s", path);
  return MOE_ENOMEM;
}

static MoeStatus failed(const char *what, const char *path)
{
  moe_error("cannot %s %s: %s", what, path, strerror(errno));
  return MOE_EIO;
}

/* ---- which tensors, in which file ---- */

/* Parameters of one tensor follow each other closely, so the latest tensors are looked at first. */
static int32_t find_tensor(const MoeHfSave *s, const char *name)
{
  int32_t i = s->n_tensors - 1;
  while (i >= 0 && strcmp(s->names[i], name) != 0) {
    i--;
  }
  return i;
}

static int32_t add_tensor(MoeHfSave *s, const MoeHfPlace *place, MoeStDtype dtype)
{
  int32_t i = s->n_tensors++;
  memcpy(s->names[i], place->name, sizeof place->name);
  memcpy(s->shapes[i], place->shape, sizeof place->shape);
  s->tensors[i] = (MoeStTensor){
      .name = s->names[i], .dtype = place->f32 ? MOE_ST_F32 : dtype, .n_dims = place->n_dims, .shape = s->shapes[i]};
  return i;
}

static void list_tensors(MoeHfSave *s, const MoeBundle *b)
{
  MoeStDtype dtype = strcmp(b->hf->dtype, "BF16") == 0 ? MOE_ST_BF16 : MOE_ST_F32;
  for (int32_t i = 0; i < b->n_params; i++) {
    MoeHfPlace place;
    (void)moe_hf_place(b, &b->params[i], 0, &place);
    int32_t tensor = place.stacked ? find_tensor(s, place.name) : -1;
    s->targets[i] = (MoeHfTarget){.tensor = tensor >= 0 ? tensor : add_tensor(s, &place, dtype),
                                  .base = place.base,
                                  .row_step = place.row_step,
                                  .col_step = place.col_step,
                                  .unit_begin = place.unit_begin,
                                  .unit_rows = place.unit_rows,
                                  .unit_cols = place.unit_cols};
  }
}

static uint64_t tensor_bytes(const MoeStTensor *t)
{
  int64_t bytes = moe_st_tensor_bytes(t->dtype, t->n_dims, t->shape);
  return bytes > 0 ? (uint64_t)bytes : 0;
}

static void deal_to_shards(MoeHfSave *s, int64_t shard_bytes)
{
  uint64_t used = 0;
  int32_t in_file = 0;
  for (int32_t i = 0; i < s->n_tensors; i++) {
    uint64_t bytes = tensor_bytes(&s->tensors[i]);
    if (s->n_shards == 0 || (in_file > 0 && used + bytes > (uint64_t)shard_bytes)) {
      s->n_shards++;
      used = 0;
      in_file = 0;
    }
    s->shard[i] = s->n_shards - 1;
    s->index[i] = in_file++;
    used += bytes;
    s->bytes += bytes;
  }
}

/* ---- the folder ---- */

static bool is_empty(const char *path)
{
  DIR *folder = opendir(path);
  bool empty = folder != NULL;
  for (struct dirent *entry; empty && (entry = readdir(folder)) != NULL;) {
    empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return empty;
}

/* An empty folder is replaced once now, by one that is as empty: of ".", of the root of a file system and the like that
   fails, and it must not fail after the training. */
static MoeStatus make_temp(MoeHfSave *s)
{
  struct stat status;
  bool replaces = lstat(s->target, &status) == 0;
  if (replaces && !is_empty(s->target)) {
    moe_error("--save-hf %s: it exists and is not an empty folder; choose another name, or remove it", s->path);
    return MOE_EINVAL;
  }
  if (mkdir(s->temp, 0777) != 0) {
    return failed("create", s->temp);
  }
  if (replaces && rename(s->temp, s->target) != 0) {
    MoeStatus failure = failed("put another folder in the place of", s->path);
    rmdir(s->temp);
    return failure;
  }
  if (replaces && mkdir(s->temp, 0777) != 0) {
    return failed("create", s->temp);
  }
  s->lock = open(s->temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  moe_file_hold(s->lock);
  return MOE_OK;
}

static MoeStatus make_folder(MoeHfSave *s, const char *path)
{
  char named[PATH_MAX], end[PATH_MAX];
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') {
    n--;
  }
  s->path = path;
  if (n >= sizeof named) {
    errno = ENAMETOOLONG;
    return failed("create", path);
  }
  snprintf(named, sizeof named, "%.*s", (int)n, path);
  if (!moe_link_end(named, end)) {
    return failed("create", path);
  }
  s->target = strdup(end);
  if (asprintf(&s->temp, "%s.tmp%ld", end, (long)getpid()) < 0) {
    s->temp = NULL;
  }
  if (s->target == NULL || s->temp == NULL) {
    return out_of_memory(path);
  }
  MoeStatus status = make_temp(s);
  if (status != MOE_OK) { /* there is nothing to remove */
    free(s->temp);
    s->temp = NULL;
  }
  return status;
}

static void shard_name(const MoeHfSave *s, int32_t shard, char *name, size_t n)
{
  if (s->n_shards == 1) {
    snprintf(name, n, "model.safetensors");
  } else {
    snprintf(name, n, "model-%05d-of-%05d.safetensors", shard + 1, s->n_shards);
  }
}

static MoeStatus make_shards(MoeHfSave *s)
{
  static const char *const metadata[] = {"format", "pt", NULL};
  int32_t first = 0;
  for (int32_t k = 0; k < s->n_shards; k++) {
    char name[64];
    int32_t end = first;
    while (end < s->n_tensors && s->shard[end] == k) {
      end++;
    }
    shard_name(s, k, name, sizeof name);
    s->files[k] = moe_path_in(s->temp, name);
    if (s->files[k] == NULL) {
      return out_of_memory(s->path);
    }
    MOE_TRY(moe_st_create(&s->writers[k], s->files[k], s->tensors + first, end - first, metadata));
    first = end;
  }
  return MOE_OK;
}

static MoeStatus begin(MoeHfSave *s, const MoeBundle *b, const char *path, int64_t shard_bytes)
{
  size_t n = (size_t)b->n_params + 1;
  s->tensors = calloc(n, sizeof *s->tensors);
  s->shapes = calloc(n, sizeof *s->shapes);
  s->names = calloc(n, sizeof *s->names);
  s->shard = calloc(n, sizeof *s->shard);
  s->index = calloc(n, sizeof *s->index);
  s->targets = calloc(n, sizeof *s->targets);
  if (s->tensors == NULL || s->shapes == NULL || s->names == NULL || s->shard == NULL || s->index == NULL ||
      s->targets == NULL) {
    return out_of_memory(path);
  }
  list_tensors(s, b);
  deal_to_shards(s, shard_bytes);
  s->writers = calloc((size_t)s->n_shards + 1, sizeof *s->writers);
  s->files = calloc((size_t)s->n_shards + 1, sizeof *s->files);
  if (s->writers == NULL || s->files == NULL) {
    return out_of_memory(path);
  }
  for (int32_t k = 0; k < s->n_shards; k++) {
    s->writers[k] = MOE_NO_ST_WRITER;
  }
  MOE_TRY(make_folder(s, path));
  return make_shards(s);
}

MoeStatus moe_hf_save_begin(MoeHfSave *s, const MoeBundle *b, const char *path, int64_t shard_bytes)
{
  *s = (MoeHfSave){.chunk = 8 << 20, .lock = -1};
  if (b->hf == NULL || b->hf->config == NULL) {
    moe_error("--save-hf: %s has no Hugging Face configuration: %s", b->model,
              b->hf != NULL && b->hf->why != NULL ? b->hf->why : "its family is not known");
    return MOE_EINVAL;
  }
  MoeStatus status = begin(s, b, path, shard_bytes);
  if (status != MOE_OK) {
    moe_hf_save_abandon(s);
  }
  return status;
}

/* ---- the tensors ---- */

/* The part of a parameter that lies in rows [begin, end) of its unit, into `to`, those rows. */
static void fill(const MoeHfTarget *t, const MoeParam *p, const float *values, MoeStDtype dtype, int64_t begin,
                 int64_t end, uint8_t *to)
{
  int64_t size = dtype == MOE_ST_F32 ? 4 : 2;
  int64_t cols = p->cols > 0 ? p->cols : 1;
  int64_t first = t->base - t->unit_begin; /* of element (0, 0) within the unit */
  if (t->col_step < t->row_step || cols == 1) {
    int64_t row = first / t->unit_cols;
    int64_t step = t->row_step / t->unit_cols;
    int64_t r = begin > row ? (begin - row + step - 1) / step : 0;
    for (; r < p->rows && row + r * step < end; r++) {
      int64_t at = (row + r * step - begin) * t->unit_cols + first % t->unit_cols;
      moe_hf_narrow(dtype, values + r * cols, 1, cols, to + at * size, t->col_step);
    }
  } else { /* transposed: row c of the unit is the own column c */
    for (int64_t c = begin; c < end && c < cols; c++) {
      int64_t at = (c - begin) * t->unit_cols + first;
      moe_hf_narrow(dtype, values + c, cols, p->rows, to + at * size, t->row_step);
    }
  }
}

/* All parameters of the bucket that share the unit of parameter `first`, so many rows of it at a time. */
static MoeStatus write_unit(const MoeHfSave *s, const MoeBundle *b, const MoeHeld *h, const float *weights,
                            int32_t first, int64_t rows, uint8_t *chunk)
{
  const MoeHfTarget *unit = &s->targets[first];
  MoeStDtype dtype = s->tensors[unit->tensor].dtype;
  int64_t row_bytes = unit->unit_cols * (dtype == MOE_ST_F32 ? 4 : 2);
  int32_t end = h->bucket->first_param + h->bucket->n_params;
  for (int64_t r = 0; r < unit->unit_rows; r += rows) {
    int64_t stop = r + rows < unit->unit_rows ? r + rows : unit->unit_rows;
    for (int32_t i = first; i < end; i++) {
      const MoeHfTarget *t = &s->targets[i];
      if (t->tensor == unit->tensor && t->unit_begin == unit->unit_begin) {
        fill(t, &b->params[i], weights + b->params[i].offset, dtype, r, stop, chunk);
      }
    }
    uint64_t at = (uint64_t)(unit->unit_begin * (row_bytes / unit->unit_cols) + r * row_bytes);
    MOE_TRY(moe_st_write(&s->writers[s->shard[unit->tensor]], s->index[unit->tensor], chunk,
                         (uint64_t)((stop - r) * row_bytes), at));
  }
  return MOE_OK;
}

/* Whether an earlier parameter of the bucket has the same unit. */
static bool seen(const MoeHfSave *s, int32_t begin, int32_t i)
{
  for (int32_t k = i - 1; k >= begin && k >= i - 8; k--) { /* an expert's tensors stand together */
    if (s->targets[k].tensor == s->targets[i].tensor && s->targets[k].unit_begin == s->targets[i].unit_begin) {
      return true;
    }
  }
  return false;
}

MoeStatus moe_hf_save_bucket(const MoeHfSave *s, const MoeBundle *b, const MoeHeld *h, const float *weights)
{
  int64_t longest = 1;
  int32_t begin = h->bucket->first_param;
  int32_t end = begin + h->bucket->n_params;
  for (int32_t i = begin; i < end; i++) {
    longest = s->targets[i].unit_cols > longest ? s->targets[i].unit_cols : longest;
  }
  int64_t rows = s->chunk / (longest * 4) > 0 ? s->chunk / (longest * 4) : 1;
  uint8_t *chunk = malloc((size_t)(rows * longest * 4));
  if (chunk == NULL) {
    return out_of_memory(s->path);
  }
  MoeStatus status = MOE_OK;
  int32_t units = 0;
  for (int32_t i = begin; i < end && status == MOE_OK; i++) {
    if (!seen(s, begin, i) && units++ % h->bucket->n_holders == h->holder) {
      status = write_unit(s, b, h, weights, i, rows, chunk);
    }
  }
  free(chunk);
  return status;
}

/* ---- the end ---- */

static MoeStatus write_text(const MoeHfSave *s, const char *name, const char *text, size_t n)
{
  char *path = moe_path_in(s->temp, name);
  MoeStatus status = path != NULL ? moe_file_put(path, text, n) : out_of_memory(s->path);
  free(path);
  return status;
}

static MoeStatus write_index(const MoeHfSave *s)
{
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  if (out == NULL) {
    return out_of_memory(s->path);
  }
  fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
          (unsigned long long)s->bytes);
  for (int32_t i = 0; i < s->n_tensors; i++) {
    char name[64];
    shard_name(s, s->shard[i], name, sizeof name);
    fprintf(out, "%s\n    \"%s\": \"%s\"", i > 0 ? "," : "", s->names[i], name);
  }
  fprintf(out, "\n  }\n}\n");
  if (fclose(out) != 0) {
    free(text);
    return out_of_memory(s->path);
  }
  MoeStatus status = write_text(s, "model.safetensors.index.json", text, n);
  free(text);
  return status;
}

static MoeStatus sync_folder(const char *path)
{
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return failed("open", path);
  }
  MoeStatus status = moe_sync(fd) ? MOE_OK : failed("write", path);
  close(fd);
  return status;
}

static MoeStatus sync_parent(const char *path)
{
  const char *slash = strrchr(path, '/');
  char *parent = slash == NULL ? strdup(".") : strndup(path, slash > path ? (size_t)(slash - path) : 1);
  MoeStatus status = parent != NULL ? sync_folder(parent) : out_of_memory(path);
  free(parent);
  return status;
}

MoeStatus moe_hf_save_commit(MoeHfSave *s, const MoeBundle *b)
{
  if (s->temp == NULL) {
    return MOE_OK;
  }
  for (int32_t k = 0; k < s->n_shards; k++) {
    MOE_TRY(moe_st_commit(&s->writers[k]));
  }
  if (s->n_shards > 1) {
    MOE_TRY(write_index(s));
  }
  MOE_TRY(write_text(s, "config.json", b->hf->config, strlen(b->hf->config)));
  MOE_TRY(sync_folder(s->temp));
  if (rename(s->temp, s->target) != 0) {
    return failed("create", s->path);
  }
  free(s->temp);
  s->temp = NULL;
  return sync_parent(s->target);
}

void moe_hf_save_abandon(MoeHfSave *s)
{
  for (int32_t k = 0; k < s->n_shards && s->writers != NULL; k++) {
    moe_st_abandon(&s->writers[k]);
    free(s->files[k]);
  }
  if (s->temp != NULL) {
    moe_folder_remove(s->temp); /* everything in it is ours: it was made by this process */
  }
  if (s->lock > 0) {
    close(s->lock);
  }
  free(s->temp);
  free(s->target);
  free(s->tensors);
  free(s->shapes);
  free(s->names);
  free(s->shard);
  free(s->index);
  free(s->targets);
  free(s->writers);
  free(s->files);
  *s = (MoeHfSave){0};
}
