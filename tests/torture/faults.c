/* Faults on purpose, for tests: the n-th operation on files below a folder kills the process or fails.

   Loaded before libc (LD_PRELOAD). `arm` says what is to happen; without it nothing does. Operations are counted by kind:
   1 write, 2 fsync, 4 rename, 8 making a file or folder, 16 removing one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t length;
static int kinds, error, lasting;
static long count, last;

void arm(const char *below, int which, long nth, int with, int always) {
  strncpy(folder, below, sizeof folder - 1);
  length = strlen(folder), kinds = which, last = nth, error = with, lasting = always, count = 0;
}

long counted(void) { return count; }

static int below(const char *path) { return length && !strncmp(path, folder, length); }

static int place(int fd, const char *name) {
  char link[64], path[PATH_MAX] = "";
  if (!length || (name && name[0] == '/')) return name && below(name);
  if (fd == AT_FDCWD) strcpy(link, "/proc/self/cwd");
  else snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size > 0) path[size] = 0;
  return below(path);
}

/* whether this operation is to fail; a process that is to die does so before it */
static int fails(int kind, int fd, const char *name) {
  int before = errno, ours = (kinds & kind) && place(fd, name);
  errno = before;
  if (!ours) return 0;
  ++count;
  if (!last || count < last || (count > last && !lasting)) return 0;
  if (!error) kill(getpid(), SIGKILL);
  errno = error;
  return 1;
}

#define NEXT(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
  return fails(1, fd, NULL) ? -1 : NEXT(ssize_t, write, int, const void *, size_t)(fd, data, size);
}
int fsync(int fd) { return fails(2, fd, NULL) ? -1 : NEXT(int, fsync, int)(fd); }
int rename(const char *from, const char *to) {
  return fails(4, AT_FDCWD, to) ? -1 : NEXT(int, rename, const char *, const char *)(from, to);
}
int renameat(int old, const char *from, int new, const char *to) {
  return fails(4, new, to) ? -1 : NEXT(int, renameat, int, const char *, int, const char *)(old, from, new, to);
}
int mkdir(const char *path, mode_t mode) {
  return fails(8, AT_FDCWD, path) ? -1 : NEXT(int, mkdir, const char *, mode_t)(path, mode);
}
int unlink(const char *path) { return fails(16, AT_FDCWD, path) ? -1 : NEXT(int, unlink, const char *)(path); }
int rmdir(const char *path) { return fails(16, AT_FDCWD, path) ? -1 : NEXT(int, rmdir, const char *)(path); }
int unlinkat(int fd, const char *path, int flags) {
  return fails(16, fd, path) ? -1 : NEXT(int, unlinkat, int, const char *, int)(fd, path, flags);
}

#define OPENING(name)                                                                  \
  int name(const char *path, int flags, ...) {                                         \
    va_list more;                                                                      \
    va_start(more, flags);                                                             \
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                          \
    va_end(more);                                                                      \
    if ((flags & O_CREAT) && fails(8, AT_FDCWD, path)) return -1;                      \
    return NEXT(int, name, const char *, int, ...)(path, flags, mode);                 \
  }
OPENING(open)
OPENING(open64)
