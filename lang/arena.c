#include "lang/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 1 << 14, BLOCK_BYTES = 1 << 20, ALIGN = 16 }; /* blocks double from FIRST to BLOCK */

typedef struct Block {
  struct Block *next;
  size_t used, size;
} Block;

struct Arena {
  Block *top;
};

static void *must(void *p)
{
  if (!p) {
    fprintf(stderr, "moec: out of memory\n");
    exit(1);
  }
  return p;
}

Arena *arena_new(void)
{
  return must(calloc(1, sizeof(Arena)));
}

void arena_free(Arena *arena)
{
  while (arena->top) {
    Block *next = arena->top->next;
    free(arena->top);
    arena->top = next;
  }
  free(arena);
}

void *arena_alloc(Arena *arena, size_t bytes)
{
  size_t head = (sizeof(Block) + ALIGN - 1) / ALIGN * ALIGN;
  if (bytes > SIZE_MAX / 2) {
    must(NULL);
  }
  bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  Block *block = arena->top;
  if (!block || block->size - block->used < bytes) {
    size_t next = !block ? FIRST_BYTES : block->size < BLOCK_BYTES ? 2 * block->size : BLOCK_BYTES;
    size_t size = bytes > next ? bytes : next;
    Block *fresh = must(calloc(1, head + size));
    fresh->size = size;
    if (block && bytes > next) { /* keep filling the present block */
      fresh->next = block->next;
      block->next = fresh;
    } else {
      fresh->next = block;
      arena->top = fresh;
    }
    block = fresh;
  }
  void *p = (char *)block + head + block->used;
  block->used += bytes;
  return p;
}

void *arena_array(Arena *arena, size_t n, size_t size)
{
  if (size && n > SIZE_MAX / size) {
    must(NULL);
  }
  return arena_alloc(arena, n * size);
}

void *arena_grow(Arena *arena, void *list, int n, int *room, size_t size)
{
  if (n < *room) {
    return list;
  }
  *room = *room ? 2 * *room : 64;
  void *more = arena_array(arena, (size_t)*room, size);
  if (n) {
    memcpy(more, list, (size_t)n * size);
  }
  return more;
}

char *arena_strndup(Arena *arena, const char *text, size_t n)
{
  char *copy = arena_alloc(arena, n + 1);
  memcpy(copy, text, n);
  return copy;
}

char *arena_printf(Arena *arena, const char *format, ...)
{
  if (!format) {
    must(NULL); /* never, but under sanitizers the compiler warns of it unless it is ruled out */
  }
  va_list args;
  va_start(args, format);
  int n = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (n < 0) {
    must(NULL);
  }
  char *text = arena_alloc(arena, (size_t)n + 1);
  va_start(args, format);
  vsnprintf(text, (size_t)n + 1, format, args);
  va_end(args);
  return text;
}
