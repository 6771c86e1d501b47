/* Preloaded into the program under test: makes writing, fsync or reading of certain files fail or slow, as a disk
   would, or ends the process. IO_FAULT = "enospc|eio|fsync|read|slow|exit|unlink|nofallocate|nolock:PART_OF_PATH:N":
   from the Nth such call on a file whose path contains the part, or ends with it where "$" stands behind it. "exit"
   ends the process in front of writing or reading, "unlink" in front of removing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int matches(const char* path, const char* part) {
  const size_t length = strlen(path), wanted = strlen(part);
  if (wanted == 0 || part[wanted - 1] != '$') return strstr(path, part) != NULL;
  return length >= wanted - 1 && strncmp(path + length - (wanted - 1), part, wanted - 1) == 0;
}

static int hits_path(const char* kind, const char* path) {
  static int calls = 0;
  char fault[512];
  const char* text = getenv("IO_FAULT");
  if (text == NULL || strlen(text) >= sizeof fault) return 0;
  strcpy(fault, text);
  char* part = strchr(fault, ':');
  if (part == NULL) return 0;
  *part++ = 0;
  char* from = strrchr(part, ':');
  if (from == NULL || strcmp(fault, kind) != 0) return 0;
  *from++ = 0;
  return matches(path, part) && __sync_add_and_fetch(&calls, 1) >= atoi(from);
}

static int hits(const char* kind, int fd) {
  char path[512], link[64];
  if (getenv("IO_FAULT") == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return hits_path(kind, path);
}

static int fails(const char* kind, int fd, int error) {
  if (!hits(kind, fd)) return 0;
  errno = error;
  return 1;
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  static ssize_t (*real)(int, const void*, size_t, off64_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pwrite64");
  if (fails("enospc", fd, ENOSPC) || fails("eio", fd, EIO)) return -1;
  if (hits("exit", fd)) _exit(9);
  return real(fd, data, bytes, at);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) { return pwrite64(fd, data, bytes, at); }

ssize_t pread64(int fd, void* data, size_t bytes, off64_t at) {
  static ssize_t (*real)(int, void*, size_t, off64_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pread64");
  if (fails("read", fd, EIO)) return -1;
  if (hits("slow", fd)) usleep(2000);
  if (hits("exit", fd)) _exit(9);
  return real(fd, data, bytes, at);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t at) { return pread64(fd, data, bytes, at); }

int fallocate64(int fd, int mode, off64_t at, off64_t bytes) {
  static int (*real)(int, int, off64_t, off64_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fallocate64");
  return fails("enospc", fd, ENOSPC) || fails("nofallocate", fd, EOPNOTSUPP) ? -1 : real(fd, mode, at, bytes);
}
int fallocate(int fd, int mode, off_t at, off_t bytes) { return fallocate64(fd, mode, at, bytes); }

int flock(int fd, int operation) {
  static int (*real)(int, int);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "flock");
  return fails("nolock", fd, ENOLCK) ? -1 : real(fd, operation);
}

int unlink(const char* path) {
  static int (*real)(const char*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "unlink");
  if (hits_path("unlink", path)) _exit(9);
  return real(path);
}

int fsync(int fd) {
  static int (*real)(int);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fsync");
  return fails("fsync", fd, EIO) ? -1 : real(fd);
}
int fdatasync(int fd) {
  static int (*real)(int);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fdatasync");
  return fails("fsync", fd, EIO) ? -1 : real(fd);
}
