/*
 * read_test by the C library: no mount, no kernel between the program and the pool.
 *
 *     cc -O2 read_test.c $(pkg-config --cflags --libs ramlace) -o read_test
 *     ./read_test --quiet ramlace:/floats
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <ramlace.h>
#include <unistd.h>

#include "read_test.h"

static ramlace_pool *pool;
static ramlace_file *input;

static void fail(const char *doing)
{
    fprintf(stderr, "read_test: %s: %s\n", doing, ramlace_error());
    exit(1);
}

static uint64_t input_open(const char *path)
{
    struct ramlace_stat found;
    /* A locator says in which pool the file is; a plain path lies in the default pool. */
    pool = ramlace_connect(strncmp(path, "ramlace:", 8) == 0 ? path : NULL, NULL);
    if (pool == NULL)
        fail("connecting");
    input = ramlace_open(pool, path, O_RDONLY, 0);
    if (input == NULL || ramlace_fstat(input, &found) != 0)
        fail("opening");
    return found.size;
}

static void input_seek(uint64_t offset)
{
    if (ramlace_lseek(input, (int64_t)offset, SEEK_SET) < 0)
        fail("seeking");
}

static void input_read(void *buffer, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = ramlace_read(input, (char *)buffer + done, bytes - done);
        if (now < 0)
            fail("reading");
        if (now == 0) {
            fprintf(stderr, "read_test: the file has become shorter\n");
            exit(1);
        }
        done += (size_t)now;
    }
}

static void input_close(void)
{
    if (ramlace_close(input) != 0 || ramlace_disconnect(pool) != 0)
        fail("closing");
}

static uint64_t input_sum(uint64_t own)
{
    return own;
}

int main(int argc, char **argv)
{
    return read_test(argc, argv);
}
