/* Faults on purpose, for tests: the n-th operation on files below a folder kills the process or fails.

   Loaded before libc (LD_PRELOAD). `arm` says what is to happen; without it nothing does. Operations are counted by kind:
   1 write, 2 fsync, 4 rename, 8 making a file or folder, 16 removing one. What was armed, and the count, is in a file that
   SMADMM_FAULTS names, so that all processes of a run count together: ranks, and workers that are started anew. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
  char folder[PATH_MAX];
  size_t length;
  int kinds, error, lasting;
  long count, last;
} *fault;

__attribute__((constructor)) static void share(void) {
  const char *name = getenv("SMADMM_FAULTS");
  int fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0 || ftruncate(fd, sizeof *fault)) return;
  fault = mmap(NULL, sizeof *fault, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
}

void disarm(void) { fault->length = 0; }

void arm(const char *below, int which, long nth, int with, int always) {
  disarm();
  strncpy(fault->folder, below, sizeof fault->folder - 1);
  fault->kinds = which, fault->last = nth, fault->error = with, fault->lasting = always, fault->count = 0;
  fault->length = strlen(below);
}

long counted(void) { return fault->count; }

static int below(const char *path) { return fault->length && !strncmp(path, fault->folder, fault->length); }

static int place(int fd, const char *name) {
  char link[64], path[PATH_MAX] = "";
  if (name && name[0] == '/') return below(name);
  if (fd == AT_FDCWD) strcpy(link, "/proc/self/cwd");
  else snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size > 0) path[size] = 0;
  return below(path);
}

/* whether this operation is to fail; a process that is to die does so before it */
static int fails(int kind, int fd, const char *name) {
  if (!fault || !fault->length || !(fault->kinds & kind)) return 0;
  int before = errno, ours = place(fd, name);
  errno = before;
  if (!ours) return 0;
  long count = __sync_add_and_fetch(&fault->count, 1);
  if (!fault->last || count < fault->last || (count > fault->last && !fault->lasting)) return 0;
  if (!fault->error) kill(getpid(), SIGKILL);
  errno = fault->error;
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
