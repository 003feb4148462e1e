/*
 * What all forms of read_test share: options, random offsets, and what is printed. Each form has
 * the reading: input_open, input_seek, input_read, input_close; and input_sum.
 */
#ifndef READ_TEST_H
#define READ_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "floats.h"

struct read_test {
    const char *path;
    uint64_t repeats; /* how often to seek and read */
    uint64_t floats;  /* floats of one read */
    uint64_t seed;    /* the same seed reads at the same offsets */
    int quiet;        /* print the summary alone */
    int check;        /* compare every float with float_at */
    int sum;          /* add up all floats that were read */
};

/* Provided by each form. They end the program when something fails. */
static uint64_t input_open(const char *path); /* returns the bytes of the file */
static void input_seek(uint64_t offset);
static void input_read(void *buffer, size_t bytes); /* all of them */
static void input_close(void);
static uint64_t input_sum(uint64_t own); /* the sum over all processes that share the reads */

/* Which of the processes that share the reads this is, and how many they are. */
static int read_test_rank = 0, read_test_ranks = 1;

static void usage(void)
{
    fprintf(stderr, "usage: read_test [--repeats N] [--floats N] [--seed N] [--check] [--sum] [--quiet] FILE\n"
                    "  --repeats N   seek and read so often (1000)\n"
                    "  --floats N    floats of one read (2048000)\n"
                    "  --seed N      which random offsets (1)\n"
                    "  --check       compare all floats with what make_floats writes\n"
                    "  --sum         print the sum of all floats that were read\n"
                    "  --quiet       print the summary alone\n");
    exit(2);
}

static uint64_t number(const char *text)
{
    char *end;
    if (text == NULL || *text < '0' || *text > '9')
        usage();
    unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0')
        usage();
    return value;
}

static struct read_test options(int argc, char **argv)
{
    struct read_test test = {NULL, 1000, 2048000, 1, 0, 0, 0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--repeats") == 0)
            test.repeats = number(argv[++i]);
        else if (strcmp(argv[i], "--floats") == 0)
            test.floats = number(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0)
            test.seed = number(argv[++i]);
        else if (strcmp(argv[i], "--quiet") == 0)
            test.quiet = 1;
        else if (strcmp(argv[i], "--check") == 0)
            test.check = 1;
        else if (strcmp(argv[i], "--sum") == 0)
            test.sum = 1;
        else if (argv[i][0] == '-' || test.path != NULL)
            usage();
        else
            test.path = argv[i];
    }
    if (test.path == NULL || test.floats == 0 || test.floats > SIZE_MAX / sizeof(float))
        usage();
    return test;
}

/* The next random number: splitmix64 (Steele, Lea and Flood 2014), the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void check(const float *buffer, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (buffer[i] != float_at(first + i)) {
            fprintf(stderr, "read_test: float %llu is %.1f and should be %.1f\n",
                    (unsigned long long)(first + i), (double)buffer[i], (double)float_at(first + i));
            exit(1);
        }
    }
}

/* Exact: the floats are whole numbers. */
static uint64_t add_up(const float *buffer, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (uint64_t)buffer[i];
    return sum;
}

/* The values go to standard output: the same for the same file and seed, whichever form reads.
 * The rate, which counts the seeks and the reads, goes to standard error. */
static int read_test(int argc, char **argv)
{
    struct read_test test = options(argc, argv);
    uint64_t floats_there = input_open(test.path) / sizeof(float);
    if (floats_there < test.floats) {
        fprintf(stderr, "read_test: %s has %llu floats, fewer than the %llu of one read\n", test.path,
                (unsigned long long)floats_there, (unsigned long long)test.floats);
        return 1;
    }
    size_t bytes = (size_t)test.floats * sizeof(float);
    float *buffer = malloc(bytes);
    if (buffer == NULL) {
        perror("read_test");
        return 1;
    }
    memset(buffer, 0, bytes); /* the memory's first use is no part of the measurement */
    uint64_t state = test.seed, reads = 0, sum = 0;
    double taken = 0;
    for (uint64_t i = 0; i < test.repeats; i++) {
        uint64_t first = next_random(&state) % (floats_there - test.floats + 1);
        if (i % (uint64_t)read_test_ranks != (uint64_t)read_test_rank)
            continue;
        reads++;
        double before = seconds();
        input_seek(first * sizeof(float));
        input_read(buffer, bytes);
        taken += seconds() - before;
        if (!test.quiet)
            printf("%llu %.1f %.1f %.1f\n", (unsigned long long)first, (double)buffer[0],
                   (double)buffer[test.floats / 2], (double)buffer[test.floats - 1]);
        if (test.check)
            check(buffer, first, test.floats);
        if (test.sum)
            sum += add_up(buffer, test.floats);
    }
    free(buffer);
    input_close();
    if (test.sum)
        sum = input_sum(sum);
    if (test.sum && read_test_rank == 0)
        printf("sum %llu\n", (unsigned long long)sum);
    double megabytes = (double)bytes * (double)reads / 1e6;
    fprintf(stderr, "read_test: %llu reads of %llu bytes in %.3f s: %.0f MB/s\n",
            (unsigned long long)reads, (unsigned long long)bytes, taken,
            taken > 0 ? megabytes / taken : 0.0);
    return fflush(stdout) == 0 ? 0 : 1;
}

#endif
