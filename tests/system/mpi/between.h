/* A program that includes this stands between the MPI-IO library and the C library: the calls of the C library that move bytes or
 * change sizes are found here first, fail where the program says, or wait. */
#ifndef BETWEEN_H
#define BETWEEN_H

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* What touches a byte of this range fails with this error; with 0 nothing does. */
static int64_t fails_from, fails_to;
static int fails_with;
/* Writes move half of what they should, as in a pool that fills up. */
static bool full;
/* Whether that was so in this thread: then it has a sentence about it. */
static __thread bool failed_here;
/* Calls that failed here, calls that read, and the bytes that they wanted. */
static int failed, reads;
static int64_t wanted;
/* A large write, or a change of the size, waits here until it may go on. */
static bool holds, is_held;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;

static void hold_here(void)
{
    pthread_mutex_lock(&gate);
    is_held = holds;
    pthread_cond_broadcast(&turned);
    while (holds)
        pthread_cond_wait(&turned, &gate);
    is_held = false;
    pthread_mutex_unlock(&gate);
}

static void hold(bool now)
{
    pthread_mutex_lock(&gate);
    holds = now;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&gate);
}

static void wait_until_held(void)
{
    pthread_mutex_lock(&gate);
    while (!is_held)
        pthread_cond_wait(&turned, &gate);
    pthread_mutex_unlock(&gate);
}

static bool fails(const ramlace_run *runs, size_t count)
{
    for (size_t i = 0; i < count && fails_with != 0; i++)
        for (int64_t number = 0; number < runs[i].count; number++) {
            int64_t from = runs[i].offset + number * runs[i].stride;
            if (from < fails_to && from + runs[i].length > fails_from) {
                failed++;
                failed_here = true;
                errno = fails_with;
                return true;
            }
        }
    return false;
}

ssize_t ramlace_pwrite_runs(struct ramlace_file *of, const void *bytes, size_t length, const ramlace_run *runs, size_t count)
{
    ssize_t (*real)(struct ramlace_file *, const void *, size_t, const ramlace_run *, size_t) =
        dlsym(RTLD_NEXT, "ramlace_pwrite_runs");
    if (length >= 256 << 10)
        hold_here();
    if (fails(runs, count))
        return -1;
    return full ? (ssize_t)length / 2 : real(of, bytes, length, runs, count);
}

ssize_t ramlace_pread_runs(struct ramlace_file *of, void *buffer, size_t length, const ramlace_run *runs, size_t count)
{
    ssize_t (*real)(struct ramlace_file *, void *, size_t, const ramlace_run *, size_t) =
        dlsym(RTLD_NEXT, "ramlace_pread_runs");
    reads++;
    wanted += (int64_t)length;
    return fails(runs, count) ? -1 : real(of, buffer, length, runs, count);
}

int ramlace_ftruncate(struct ramlace_file *of, int64_t size)
{
    int (*real)(struct ramlace_file *, int64_t) = dlsym(RTLD_NEXT, "ramlace_ftruncate");
    hold_here();
    return real(of, size);
}

int ramlace_allocate(struct ramlace_file *of, int64_t length)
{
    (void)of, (void)length;
    errno = ENOSPC;
    return -1;
}

#endif
