/* What all ranks of a file do at once. MPI libraries wait for the slowest rank in a loop that never leaves the processor: where
 * there are more ranks than processors, or a server runs beside them, the one that all wait for waits for its turn, some
 * milliseconds each time. So these calls begin, and then leave the processor to others until all have come. */
#include "mpiio.h"

#include <sched.h>
#include <time.h>

/* Looks, before others have a turn after each: more than it takes where all come at once. */
#define LOOKS_AT_ONCE 200
/* How long this rank stays awake between looks, and how long it sleeps from then on. */
#define AWAKE_NANOSECONDS 1000000
#define NAP_NANOSECONDS 50000

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Leaves the processor to others, when it has looked so often; `since` is 0 the first time. */
static void leave_processor(int looks, int64_t *since)
{
    const struct timespec nap = {0, NAP_NANOSECONDS};
    if (looks < LOOKS_AT_ONCE)
        return;
    if (*since == 0)
        *since = now();
    if (now() - *since < AWAKE_NANOSECONDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

/* An operation that did not begin has no request. */
static int wait_for_all(int code, MPI_Request request)
{
    int64_t since = 0;
    int done = code != MPI_SUCCESS;
    for (int looks = 1; !done; looks += looks < LOOKS_AT_ONCE) {
        code = PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
        done = done || code != MPI_SUCCESS;
        if (!done)
            leave_processor(looks, &since);
    }
    return code;
}

void together_come(MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Ibarrier(comm, &request);
    wait_for_all(code, request);
}

void together_reduce(void *all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Iallreduce(MPI_IN_PLACE, all, count, type, op, comm, &request);
    wait_for_all(code, request);
}

void together_tell(int64_t *told, int count, int root, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Ibcast(told, count, MPI_INT64_T, root, comm, &request);
    wait_for_all(code, request);
}

int64_t together_sum_up_to(int64_t mine, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t sum = 0;
    int code = PMPI_Iscan(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, comm, &request);
    wait_for_all(code, request);
    return sum;
}

void together_swap(const void *mine, const int *counts, const int *at, void *theirs, const int *their_counts,
                   const int *their_at, MPI_Datatype type, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Ialltoallv(mine, counts, at, type, theirs, their_counts, their_at, type, comm, &request);
    wait_for_all(code, request);
}

void together_swap_equal(const int64_t *mine, int64_t *theirs, int count, MPI_Comm comm)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Ialltoall(mine, count, MPI_INT64_T, theirs, count, MPI_INT64_T, comm, &request);
    wait_for_all(code, request);
}

int together_copy(MPI_Comm comm, MPI_Comm *copy)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = PMPI_Comm_idup(comm, copy, &request);
    return wait_for_all(code, request);
}
