/*
 * Writes a file of floats, 4 bytes each, to standard output; see floats.h.
 *
 *     cc -O2 make_floats.c -o make_floats
 *     ./make_floats [COUNT] > file
 */
#include <stdio.h>
#include <stdlib.h>

#include "floats.h"

#define BUFFER_FLOATS 262144

int main(int argc, char **argv)
{
    static float buffer[BUFFER_FLOATS];
    char *end = "";
    long long count = argc > 1 ? strtoll(argv[1], &end, 10) : FLOATS_DEFAULT;
    if (argc > 2 || *end != '\0' || count < 0) {
        fprintf(stderr, "usage: make_floats [COUNT] > file\n");
        return 2;
    }
    for (long long done = 0; done < count;) {
        long long now = count - done < BUFFER_FLOATS ? count - done : BUFFER_FLOATS;
        for (long long i = 0; i < now; i++)
            buffer[i] = float_at((uint64_t)(done + i));
        if (fwrite(buffer, sizeof(float), (size_t)now, stdout) != (size_t)now) {
            perror("make_floats");
            return 1;
        }
        done += now;
    }
    if (fflush(stdout) != 0) {
        perror("make_floats");
        return 1;
    }
    return 0;
}
