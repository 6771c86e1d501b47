/* Preloaded into the program under test: its clocks run faster than the machine's, and its wall clock can jump.
   FAST_CLOCK names a file of four int64 in the machine's byte order: how many times as fast, the real monotonic and the
   real wall time at which both kinds of time agree, and how far the wall clock is off, all three in nanoseconds.
   The file may change while programs run. Sleeps and waits for an instant end sooner by the same factor. A poll with a
   timeout keeps its real length. libfaketime does not know pthread_cond_clockwait, by which std::condition_variable
   waits, and would have such waits last forever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { kSpeed, kMonotonic, kWall, kOff, kFields };

static const int64_t kSecond = 1000000000;

static const volatile int64_t* state(void) {
  static const volatile int64_t* mapped;
  if (mapped != NULL) return mapped;
  const char* name = getenv("FAST_CLOCK");
  const int fd = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
  void* memory = fd < 0 ? MAP_FAILED : mmap(NULL, kFields * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) _exit(9);  // a test must not run by the wrong clock
  close(fd);
  return mapped = memory;
}

static int64_t real_monotonic(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int64_t fast(clockid_t clock) {
  const volatile int64_t* at = state();
  const int64_t passed = (real_monotonic() - at[kMonotonic]) * at[kSpeed];
  return passed + (is_wall(clock) ? at[kWall] + at[kOff] : at[kMonotonic]);
}

static struct timespec timespec_of(int64_t nanoseconds) {
  return (struct timespec){nanoseconds / kSecond, nanoseconds % kSecond};
}

static int64_t nanoseconds_of(const struct timespec* time) { return time->tv_sec * kSecond + time->tv_nsec; }

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int fast_one = is_wall(clock) || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                       clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
  if (!fast_one) return (int)syscall(SYS_clock_gettime, clock, time);  // CPU time
  *time = timespec_of(fast(clock));
  return 0;
}

time_t time(time_t* result) {
  const time_t now = fast(CLOCK_REALTIME) / kSecond;
  if (result != NULL) *result = now;
  return now;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  const int64_t now = fast(CLOCK_REALTIME);
  *time = (struct timeval){now / kSecond, now % kSecond / 1000};
  return 0;
}

int nanosleep(const struct timespec* wanted, struct timespec* left) {
  (void)left;  // only after a signal handler, which the program's threads do not run
  const struct timespec shorter = timespec_of(nanoseconds_of(wanted) / state()[kSpeed]);
  return (int)syscall(SYS_nanosleep, &shorter, NULL);
}

int usleep(useconds_t microseconds) {
  const struct timespec wanted = timespec_of(microseconds * (int64_t)1000);
  return nanosleep(&wanted, NULL);
}

int pthread_cond_clockwait(pthread_cond_t* changed, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static int (*real)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  const int64_t left = (nanoseconds_of(until) - fast(clock)) / state()[kSpeed];
  const struct timespec end = timespec_of(real_monotonic() + (left > 0 ? left : 0));
  return real(changed, mutex, CLOCK_MONOTONIC, &end);
}
