/* What the parts of capi_test share: checks that say where they failed and what the library says. */
#ifndef CAPI_TEST_H
#define CAPI_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <ramlace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define UNIT 65536

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition,   \
                    errno, ramlace_error());                                                        \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* The call fails with this errno, and its text has these words. */
#define FAILS(call, number, words)                                                                  \
    do {                                                                                            \
        errno = 0;                                                                                  \
        CHECK(call);                                                                                \
        CHECK(errno == (number));                                                                   \
        CHECK(ramlace_error_code() != RAMLACE_ERROR_NONE);                                          \
        if (strstr(ramlace_error(), words) == NULL) {                                               \
            fprintf(stderr, "%s:%d: no \"%s\" in: %s\n", __FILE__, __LINE__, words, ramlace_error()); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* The pool of the test, and a path in the test's own directory: valid until the third next. */
extern ramlace_pool *pool;
const char *at(const char *name);

/* A byte that depends on where it is. */
static inline unsigned char byte_at(size_t seed, size_t index)
{
    return (unsigned char)((index * 2654435761u + seed * 40503u) >> 11);
}

static inline void fill(unsigned char *bytes, size_t seed, size_t length)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_at(seed, i);
}

void test_files(void);
void test_vectors(void);
void test_runs(void);
void test_space(void);
void test_names(void);
void test_strange_names(void);
void test_lists(void);
void test_layouts(void);
void test_placing(void);
void test_maps(void);
void test_views(void);
void test_beside(void);
void test_sharing(void);
void test_wrong(void);
void test_threads(void);
void test_forks(void);
void test_locks(void);
void test_coordination(void);
void test_locators(int argc, char **argv);
void test_full(void);
void test_gone(void);

#endif
