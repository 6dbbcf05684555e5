/* A binary heap of (key, value) pairs, smallest key first, then smallest value. Start with {0}; free(heap.keys). */
#ifndef CODEGEN_SCHED_HEAP_H
#define CODEGEN_SCHED_HEAP_H

#include <stdint.h>
#include <stdlib.h>

#include "lang/arena.h"

typedef struct Heap {
  int64_t *keys; /* pairs (key, value) */
  int n, cap;
} Heap;

static inline void heap_push(Heap *heap, int64_t key, int64_t value)
{
  if (heap->n == heap->cap) {
    heap->cap = heap->cap ? 2 * heap->cap : 16;
    int64_t *keys = realloc(heap->keys, (size_t)heap->cap * 2 * sizeof *keys);
    if (!keys) {
      die("out of memory");
    }
    heap->keys = keys;
  }
  int i = heap->n++;
  while (i > 0) {
    int up = (i - 1) / 2;
    int64_t k = heap->keys[2 * up], v = heap->keys[2 * up + 1];
    if (k < key || (k == key && v <= value)) {
      break;
    }
    heap->keys[2 * i] = k;
    heap->keys[2 * i + 1] = v;
    i = up;
  }
  heap->keys[2 * i] = key;
  heap->keys[2 * i + 1] = value;
}

/* Value of the smallest; the heap has one. */
static inline int64_t heap_pop(Heap *heap)
{
  int64_t top = heap->keys[1];
  int n = --heap->n;
  int64_t key = heap->keys[2 * n], value = heap->keys[2 * n + 1];
  int i = 0;
  for (;;) {
    int child = 2 * i + 1;
    if (child >= n) {
      break;
    }
    int64_t *c = &heap->keys[2 * child];
    if (child + 1 < n && (c[2] < c[0] || (c[2] == c[0] && c[3] < c[1]))) {
      c += 2;
      child++;
    }
    if (key < c[0] || (key == c[0] && value <= c[1])) {
      break;
    }
    heap->keys[2 * i] = c[0];
    heap->keys[2 * i + 1] = c[1];
    i = child;
  }
  heap->keys[2 * i] = key;
  heap->keys[2 * i + 1] = value;
  return top;
}

/* Takes out entry i. */
static inline void heap_remove(Heap *heap, int i)
{
  while (i > 0) { /* up to the top, then as ever */
    int up = (i - 1) / 2;
    heap->keys[2 * i] = heap->keys[2 * up];
    heap->keys[2 * i + 1] = heap->keys[2 * up + 1];
    i = up;
  }
  (void)heap_pop(heap);
}

#endif
