/*
 * read_test by open, lseek and read: on any file, and so on a mounted pool.
 *
 *     cc -O2 read_test_posix.c -o read_test_posix
 *     ./read_test_posix --quiet /mnt/pool/floats
 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "read_test.h"

static int input = -1;

static void fail(const char *doing)
{
    fprintf(stderr, "read_test_posix: ");
    perror(doing);
    exit(1);
}

static uint64_t input_open(const char *path)
{
    struct stat found;
    input = open(path, O_RDONLY);
    if (input < 0 || fstat(input, &found) != 0)
        fail(path);
    return (uint64_t)found.st_size;
}

static void input_seek(uint64_t offset)
{
    if (lseek(input, (off_t)offset, SEEK_SET) < 0)
        fail("seeking");
}

static void input_read(void *buffer, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t now = read(input, (char *)buffer + done, bytes - done);
        if (now < 0)
            fail("reading");
        if (now == 0) {
            fprintf(stderr, "read_test_posix: the file has become shorter\n");
            exit(1);
        }
        done += (size_t)now;
    }
}

static void input_close(void)
{
    if (close(input) != 0)
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
