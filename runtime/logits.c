#include "runtime/logits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/log.h"

static MoeStatus map_file(MoeLogits *l)
{
  const MoeFile *f = &l->file.file;
  uint64_t begin = l->file.begin[0], bytes = begin + l->file.bytes[0];
  int error = posix_fallocate(f->fd, 0, (off_t)bytes);
  if (error != 0) {
    moe_error("cannot write the %llu bytes of %s: %s", (unsigned long long)bytes, f->path, strerror(error));
    return MOE_EIO;
  }
  if (!moe_map(&l->mapped, f->fd, bytes, PROT_READ | PROT_WRITE, f->path)) {
    moe_error("cannot map the %llu bytes of %s: %s", (unsigned long long)bytes, f->path, strerror(errno));
    return MOE_EIO;
  }
  l->values = (float *)(void *)(l->mapped.base + begin); /* data begins at a multiple of 8 */
  return MOE_OK;
}

MoeStatus moe_logits_begin(MoeLogits *l, const MoeBundle *b, const char *path)
{
  const int64_t shape[] = {b->global_batch, b->seq, b->vocab};
  const MoeStTensor tensor = {.name = "logits", .dtype = MOE_ST_F32, .n_dims = 3, .shape = shape};
  *l = MOE_NO_LOGITS;
  MOE_TRY(moe_st_create(&l->file, path, &tensor, 1, NULL));
  return map_file(l);
}

MoeStatus moe_logits_commit(MoeLogits *l)
{
  moe_unmap(&l->mapped);
  l->values = NULL;
  return moe_st_commit(&l->file);
}

void moe_logits_abandon(MoeLogits *l)
{
  moe_unmap(&l->mapped);
  l->values = NULL;
  moe_st_abandon(&l->file);
}
