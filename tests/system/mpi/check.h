/* What the MPI programs of the tests share: checks that say where they failed, and end all ranks. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a random program is. */
static int step __attribute__((unused));

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        fprintf(stderr, "%s:%d (step %d): ", __FILE__, __LINE__, step);                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fputc('\n', stderr);                                                                                           \
        MPI_Abort(MPI_COMM_WORLD, 1);                                                                                  \
        exit(1);                                                                                                       \
    } while (0)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("not so: %s", #condition);                                                                            \
    } while (0)

/* A call that must succeed; files return errors here. */
#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_ != MPI_SUCCESS) {                                                                                    \
            char text_[MPI_MAX_ERROR_STRING];                                                                          \
            int length_;                                                                                               \
            MPI_Error_string(code_, text_, &length_);                                                                  \
            FAIL("%s: %s", #call, text_);                                                                              \
        }                                                                                                              \
    } while (0)

/* A call that must fail with a code of this class. */
#define REFUSED(call, wanted)                                                                                          \
    do {                                                                                                               \
        int class_ = MPI_SUCCESS, code_ = (call);                                                                      \
        if (code_ != MPI_SUCCESS)                                                                                      \
            MPI_Error_class(code_, &class_);                                                                           \
        if (class_ != (wanted))                                                                                        \
            FAIL("%s: class %d instead of %s", #call, class_, #wanted);                                                \
    } while (0)

#endif
