/* Did-you-mean: Damerau-Levenshtein distance in which another case costs nothing much. */
#include <string.h>

#include "lang/spec_keys.h"

enum { LONGEST = 64 };

static int lower(char c)
{
  return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c == '-' ? '_' : c;
}

static int min3(int a, int b, int c)
{
  int least = a < b ? a : b;
  return least < c ? least : c;
}

static int distance(const char *a, const char *b)
{
  size_t n = strlen(a);
  size_t m = strlen(b);
  if (n > LONGEST || m > LONGEST) {
    return LONGEST;
  }
  int rows[3][LONGEST + 1];
  for (size_t j = 0; j <= m; j++) {
    rows[0][j] = (int)j;
    rows[2][j] = 0;
  }
  for (size_t i = 1; i <= n; i++) {
    int *row = rows[i % 3];
    const int *above = rows[(i + 2) % 3];
    const int *second = rows[(i + 1) % 3];
    row[0] = (int)i;
    for (size_t j = 1; j <= m; j++) {
      bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + !same);
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]) &&
          second[j - 2] + 1 < row[j]) {
        row[j] = second[j - 2] + 1;
      }
    }
  }
  return rows[n % 3][m];
}

Suggest suggest_for(const char *word)
{
  size_t n = strlen(word);
  int most = n <= 2 ? 1 : n <= 5 ? 2 : n <= 8 ? 3 : 4;
  return (Suggest){.word = word, .distance = most};
}

void suggest_try(Suggest *suggest, const char *candidate)
{
  int d = distance(suggest->word, candidate);
  size_t n = strlen(candidate);
  size_t w = strlen(suggest->word);
  if (w >= 3 && n > w && d > 1 && strncmp(candidate, suggest->word, w) == 0) {
    d = 1; /* the beginning of a longer word */
  }
  if (d < suggest->distance && (size_t)d < (n > w ? n : w)) {
    suggest->distance = d;
    suggest->best = candidate;
  }
}

const char *suggest_text(Arena *arena, const Suggest *suggest)
{
  return suggest->best ? arena_printf(arena, "; did you mean '%s'?", suggest->best) : "";
}
