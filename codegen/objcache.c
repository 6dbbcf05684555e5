#include "codegen/objcache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Two independent 64-bit FNV-1a streams: 128 bits, so that a wrong object by chance is out of the question. */
static void mix(uint64_t h[2], const char *bytes, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    h[0] = (h[0] ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    h[1] = (h[1] ^ (unsigned char)(bytes[i] + 0x55)) * UINT64_C(0x9e3779b97f4a7c15);
    h[1] ^= h[1] >> 29;
  }
  uint64_t size = n; /* so that two texts and their concatenation differ */
  for (int i = 0; i < 8; i++) {
    h[0] = (h[0] ^ (size >> 8 * i & 0xff)) * UINT64_C(0x100000001b3);
    h[1] = (h[1] ^ (size >> 8 * i & 0xff)) * UINT64_C(0x9e3779b97f4a7c15);
  }
}

static void mix_command(uint64_t h[2], const char *command)
{
  FILE *in = popen(command, "r");
  char block[4096];
  for (size_t got; in && (got = fread(block, 1, sizeof block, in)) > 0;) {
    mix(h, block, got);
  }
  if (in) {
    pclose(in);
  }
}

/* The processor's features decide what -march=native means. */
static void mix_processor(uint64_t h[2])
{
  FILE *in = fopen("/proc/cpuinfo", "r");
  char line[8192];
  while (in && fgets(line, sizeof line, in)) {
    if (strncmp(line, "flags", 5) == 0 || strncmp(line, "model name", 10) == 0 || strncmp(line, "Features", 8) == 0) {
      mix(h, line, strlen(line));
    }
    if (line[0] == '\n') {
      break; /* the first processor stands for all */
    }
  }
  if (in) {
    fclose(in);
  }
}

static bool make_folders(Arena *arena, const char *path)
{
  for (const char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
    const char *part = slash ? arena_strndup(arena, path, (size_t)(slash - path)) : path;
    if (mkdir(part, 0777) != 0 && errno != EEXIST) {
      return false;
    }
    if (!slash) {
      return true;
    }
  }
}

static const char *choose_folder(Arena *arena)
{
  const char *own = getenv("MOEC_CACHE");
  const char *xdg = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  if (own && *own) {
    return own;
  }
  if (xdg && *xdg) {
    return arena_printf(arena, "%s/moec", xdg);
  }
  return home && *home ? arena_printf(arena, "%s/.cache/moec", home) : "/tmp/moec-cache";
}

bool objcache_open(Arena *arena, Diag *diag, const Bundle *bundle, const char *compiler, const char *flags,
                   ObjCache *cache)
{
  cache->folder = choose_folder(arena);
  if (!make_folders(arena, cache->folder)) {
    diag_error(diag, (Span){0}, "cannot create the object cache %s: %s (set MOEC_CACHE to a writable folder)",
               cache->folder, strerror(errno));
    return false;
  }
  uint64_t h[2] = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4)};
  mix(h, flags, strlen(flags));
  mix(h, compiler, strlen(compiler));
  mix_command(h, arena_printf(arena, "'%s' --version 2>/dev/null", compiler));
  mix_processor(h);
  for (int i = 0; i < bundle->n_files; i++) {
    const BundleFile *file = &bundle->files[i];
    if (bundle_source(file->path) == SOURCE_NONE) {
      mix(h, file->path, strlen(file->path));
      mix(h, file->bytes, file->n_bytes);
    }
  }
  cache->base[0] = h[0];
  cache->base[1] = h[1];
  return true;
}

const char *objcache_path(Arena *arena, const ObjCache *cache, const BundleFile *file)
{
  uint64_t h[2] = {cache->base[0], cache->base[1]};
  mix(h, file->path, strlen(file->path));
  mix(h, file->bytes, file->n_bytes);
  return arena_printf(arena, "%s/%016" PRIx64 "%016" PRIx64 ".o", cache->folder, h[0], h[1]);
}
