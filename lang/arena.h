/* Bump allocator for one compile: memory is zeroed and freed all at once, so nothing in the compiler is freed singly.
 */
#ifndef LANG_ARENA_H
#define LANG_ARENA_H

#include <stddef.h>

typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *);

/* Zeroed bytes, aligned for any type. Never NULL: running out of memory ends the program with a message. */
void *arena_alloc(Arena *, size_t bytes);
void *arena_array(Arena *, size_t n, size_t size); /* checks n * size */
/* Room for one more in a list of n: the list, or where it is full a copy with twice the room. */
void *arena_grow(Arena *, void *list, int n, int *room, size_t size);
char *arena_strndup(Arena *, const char *, size_t n);
char *arena_printf(Arena *, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define arena_new_of(arena, type)       ((type *)arena_alloc((arena), sizeof(type)))
#define arena_new_array(arena, type, n) ((type *)arena_array((arena), (n), sizeof(type)))

#endif
