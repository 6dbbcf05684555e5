/* Where to meet, as text says it or as all processes of a host can tell without being told. */
#include "runtime/boot.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_PORT = 10000, N_PORTS = 10000, MOST_ANCESTORS = 32 }; /* below those that the kernel hands out */

bool moe_boot_address(const char *text, char *host, size_t n, int32_t *port_p)
{
  const char *colon = strrchr(text, ':');
  size_t length = colon != NULL ? (size_t)(colon - text) : 0;
  if (length == 0 || length >= n) {
    return false;
  }
  bool bracketed = text[0] == '[' && text[length - 1] == ']';
  if (!bracketed && memchr(text, ':', length) != NULL) {
    return false; /* IPv6 without brackets: which colon ends it? */
  }
  length -= bracketed ? 2 : 0;
  memcpy(host, text + bracketed, length);
  host[length] = '\0';
  const char *port = colon + 1;
  size_t digits = strspn(port, "0123456789");
  *port_p = digits > 0 && digits <= 5 && port[digits] == '\0' ? (int32_t)strtol(port, NULL, 10) : 0;
  return length > 0 && *port_p > 0 && *port_p <= 65535;
}

int32_t moe_boot_port(const char *text)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *c = text; *c != '\0'; c++) {
    h = (h ^ (unsigned char)*c) * 0x100000001b3u;
  }
  return FIRST_PORT + (int32_t)((h ^ h >> 32) % N_PORTS);
}

/* A file of /proc, ended by a 0. Returns its length, malloc'd in *text_p; -1: it cannot be read. */
static ssize_t read_proc(long pid, const char *name, char **text_p)
{
  char path[64];
  size_t room = 4096, used = 0;
  char *text = malloc(room + 1);
  snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
  int fd = text != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  for (ssize_t n = 1; fd >= 0 && n > 0;) {
    n = read(fd, text + used, room - used);
    used += n > 0 ? (size_t)n : 0;
    char *more = used == room ? realloc(text, 2 * room + 1) : text;
    if (more == NULL) {
      break;
    }
    room = used == room ? 2 * room : room;
    text = more;
  }
  if (fd < 0) {
    free(text);
    return -1;
  }
  close(fd);
  text[used] = '\0';
  *text_p = text;
  return (ssize_t)used;
}

static bool has_variable(long pid, const char *name)
{
  char *text = NULL;
  ssize_t n = read_proc(pid, "environ", &text);
  size_t length = strlen(name);
  bool has = false;
  for (const char *at = text; n >= 0 && at < text + n; at += strlen(at) + 1) {
    has = has || (strncmp(at, name, length) == 0 && at[length] == '=');
  }
  if (n >= 0) {
    free(text);
  }
  return has;
}

long moe_boot_parent(const char *mark)
{
  long pid = (long)getppid();
  for (int i = 0; mark != NULL && i < MOST_ANCESTORS && has_variable(pid, mark); i++) {
    char *text = NULL, state;
    long parent = 0;
    if (read_proc(pid, "stat", &text) < 0) {
      break;
    }
    const char *end = strrchr(text, ')'); /* of a name that may hold anything */
    bool known = end != NULL && sscanf(end + 1, " %c %ld", &state, &parent) == 2 && parent > 0;
    free(text);
    if (!known) {
      break;
    }
    pid = parent;
  }
  return pid;
}
