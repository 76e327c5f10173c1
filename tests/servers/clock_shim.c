/*
 * Shifts the wall clock of one process, by as much as a file says now.
 *
 * Preloaded into a server. DIBS_CLOCK_FILE names a file with one number of 8 bytes, the shift in microseconds; it is
 * mapped, so a change is in force with the next look at the clock. The monotonic clocks stay as they are: a step of the
 * wall clock does not move them either.
 *
 * It asks the kernel directly and allocates nothing. libfaketime looks up the real functions instead, which allocates,
 * and hangs in a server whose allocator (jemalloc) asks for the time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift_us; /* aligned and of one word, so never read in halves */

__attribute__((constructor)) static void map_shift(void) {
    const char *name = getenv("DIBS_CLOCK_FILE");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *shift_us, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) shift_us = page;
    close(fd);
}

static void shift(struct timespec *t) {
    int64_t us = (shift_us ? *shift_us : 0) + t->tv_nsec / 1000;
    int64_t ns = us % 1000000 * 1000 + t->tv_nsec % 1000;
    t->tv_sec += us / 1000000 - (ns < 0);
    t->tv_nsec = ns < 0 ? ns + 1000000000 : ns;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, clock, t);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(t);
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone; /* obsolete, and nobody asks for it */
    struct timespec t;
    int result = clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec, tv->tv_usec = t.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
