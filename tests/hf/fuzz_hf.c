/* What comes from elsewhere: any bytes as a safetensors file, as the header of one, or as a config.json must not crash,
   hang or leak. A file that is accepted is written again and read as the same; a config that is accepted gives a spec
   that is right or refused, and whose own config says the same model. The first byte chooses. Linked with libFuzzer, or
   with tests/lang/fuzz_replay.c, which runs it over files. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codegen/hf.h"
#include "lang/spec.h"
#include "runtime/log.h"
#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good, const char *what)
{
  if (!good) {
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
  }
}

/* ---- safetensors ---- */

static void same_tensors(const MoeStSet *a, const MoeStSet *b)
{
  must(a->n == b->n, "a file that was written has another number of tensors");
  for (int32_t i = 0; i < a->n; i++) {
    const MoeStTensor *x = &a->tensors[i];
    const MoeStTensor *y = moe_st_find(b, x->name);
    must(y != NULL && x->dtype == y->dtype && x->n_dims == y->n_dims && x->bytes == y->bytes, "a tensor is another");
    must(memcmp(x->shape, y->shape, (size_t)x->n_dims * sizeof *x->shape) == 0, "a shape is another");
    must(x->bytes == 0 || memcmp(x->data, y->data, x->bytes) == 0, "the data is another");
  }
}

static void write_again(const MoeStSet *s)
{
  char path[64];
  MoeStWriter w;
  MoeStSet again;
  snprintf(path, sizeof path, "/tmp/moe-fuzz-%ld", (long)getpid());
  must(moe_st_create(&w, path, s->tensors, s->n, NULL) == MOE_OK, "a set that was read cannot be written");
  for (int32_t i = 0; i < s->n; i++) {
    must(moe_st_write(&w, i, s->tensors[i].data, s->tensors[i].bytes, 0) == MOE_OK, "cannot write");
  }
  must(moe_st_commit(&w) == MOE_OK && moe_st_open(&again, path) == MOE_OK, "what was written cannot be read");
  same_tensors(s, &again);
  moe_st_close(&again);
  unlink(path);
}

static void try_file(const uint8_t *bytes, size_t n)
{
  char path[64];
  char message[256];
  _Atomic uint32_t failed = 0;
  MoeStSet s;
  int fd = memfd_create("fuzz", 0);
  must(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "no file");
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  moe_log_to(message, sizeof message, &failed);
  if (moe_st_open(&s, path) == MOE_OK) {
    write_again(&s);
    moe_st_close(&s);
  }
  close(fd);
}

/* The text as the header, with its right length, and as many bytes of data as the next byte says. */
static void try_header(const uint8_t *text, size_t n)
{
  uint8_t bytes[8 + 4096 + 256] = {0};
  size_t data = n > 0 ? text[0] : 0;
  size_t header = n > 1 ? n - 1 : 0;
  header = header > 4096 ? 4096 : header;
  for (int i = 0; i < 8; i++) {
    bytes[i] = (uint8_t)(header >> 8 * i);
  }
  if (header > 0) {
    memcpy(bytes + 8, text + 1, header);
  }
  try_file(bytes, 8 + header + data);
}

/* ---- config.json ---- */

static char *model_text(const ModelSpec *model)
{
  Spec spec = {.model = *model};
  char *text = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&text, &n);
  spec.model.name = "m";
  spec.model.family = FAMILY_AUTO;
  spec.model.moe.balance = BALANCE_NONE; /* a config holds less of it than a spec */
  spec_print_model(&spec, out);
  fclose(out);
  return text;
}

static void check_config(Arena *arena, Diag *diag, const Spec *spec)
{
  const char *why = NULL;
  HfImport again;
  const char *text = hf_config_text(arena, spec, &why);
  if (!text) {
    return;
  }
  must(hf_import(arena, diag, "config.json", text, strlen(text), &again), "a config that was written is refused");
  char *a = model_text(&spec->model);
  char *b = model_text(&again.model);
  must(strcmp(a, b) == 0, "a config that was written says another model");
  free(a);
  free(b);
}

static void try_config(Arena *arena, Diag *diag, const uint8_t *text, size_t n)
{
  static const char hardware[] = "gpu g { flops = 1 TFLOPS; memory = 1 GB; hbm = 1 TB/s }\n"
                                 "node hgx_h800 { gpu = g; gpus = 8; nics = 8; nvlink = 1 GB/s; nic = 1 GB/s }\n"
                                 "node hgx_h800_d64 { gpu = g; gpus = 8; nics = 8; nvlink = 1 GB/s; nic = 1 GB/s }\n";
  HfImport import;
  if (!hf_import(arena, diag, "folder/config.json", (const char *)text, n, &import)) {
    return;
  }
  char *printed = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&printed, &length);
  fputs(hardware, out);
  hf_import_print(&import, "folder/config.json", "none", 1, out);
  fclose(out);
  char *use = strstr(printed, "use \"none\"");
  must(use != NULL, "no use line");
  memset(use, ' ', strlen("use \"none\""));
  const char *kept = arena_strndup(arena, printed, length);
  free(printed);
  Spec spec;
  AstFile *ast = ast_parse_text(arena, diag, "import.moespec", kept, length, false, NULL, 0);
  must(ast != NULL, "an imported spec does not parse");
  if (spec_build(arena, diag, ast, &spec)) {
    check_config(arena, diag, &spec);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size == 0) {
    return 0;
  }
  if (data[0] == 'F') {
    try_file(data + 1, size - 1);
  } else if (data[0] == 'H') {
    try_header(data + 1, size - 1);
  } else {
    bool all = data[0] == '{'; /* a config.json as it is */
    Arena *arena = arena_new();
    char *messages = NULL;
    size_t n_messages = 0;
    FILE *out = open_memstream(&messages, &n_messages);
    Diag *diag = diag_new(arena, out);
    try_config(arena, diag, data + !all, size - !all);
    fclose(out);
    free(messages);
    arena_free(arena);
  }
  return 0;
}
