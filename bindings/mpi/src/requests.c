/* Nonblocking calls. A large transfer is done by a thread of this library, one after the other in the order of the calls,
 * while the program goes on; its request is one of MPI's generalized requests, which the thread ends.
 *
 * Only with MPI_THREAD_MULTIPLE may that thread call MPI. With less, and where the transfer is small and would only wait for
 * the thread, it is over when the call returns. */
#include "mpiio.h"

#include <signal.h>
#include <stdlib.h>

/* Requests that wait for the thread; one more is done at once. */
#define WAITING_MAX 1024
/* A transfer of fewer bytes is done at once. */
#define BACKGROUND_BYTES_MIN (256 << 10)

struct request {
    struct request *next;
    struct file *file;
    MPI_File handle;
    MPI_Request request;
    struct transfer transfer;
    int code;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct request *first, **last = &first;
static int waiting;
static bool running, ending;
static pthread_t thread;

static int query(void *state, MPI_Status *status)
{
    struct request *request = state;
    status_fill(status, request->transfer.moved.in_memory);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    /* The file's handler is called here, in a thread of the program's. */
    if (request->code != MPI_SUCCESS && file_find(request->handle) == request->file)
        PMPI_File_call_errhandler(request->handle, request->code);
    return request->code;
}

static int forget(void *state)
{
    struct request *request = state;
    transfer_end(&request->transfer);
    free(request);
    return MPI_SUCCESS;
}

/* What has begun ends as if nobody had asked. */
static int cancel(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

static struct request *next_request(void)
{
    pthread_mutex_lock(&lock);
    while (first == NULL && !ending)
        pthread_cond_wait(&changed, &lock);
    struct request *request = first;
    if (request != NULL) {
        first = request->next;
        if (first == NULL)
            last = &first;
        waiting--;
    }
    pthread_mutex_unlock(&lock);
    return request;
}

static void *work(void *unused)
{
    struct request *request;
    (void)unused;
    while ((request = next_request()) != NULL) {
        struct file *file = request->file;
        request->code = error_code(transfer_do(file, &request->transfer));
        /* The program may free the request from here on; the file is not closed before `pending` says so. */
        PMPI_Grequest_complete(request->request);
        pthread_mutex_lock(&lock);
        file->pending--;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* The program's signals are for its own threads. */
static bool start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool may_use_thread(void)
{
    int level;
    return PMPI_Query_thread(&level) == MPI_SUCCESS && level >= MPI_THREAD_MULTIPLE;
}

/* Leaves a request to the thread; false where there is none, or too much to do. */
static bool leave_to_thread(struct request *request)
{
    pthread_mutex_lock(&lock);
    running = running || start_thread();
    bool left = running && waiting < WAITING_MAX;
    if (left) {
        *last = request;
        last = &request->next;
        waiting++;
        request->file->pending++;
        counters.background++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return left;
}

/* The individual pointer goes on at once by what there is to read, for the next call may come before this one is over. */
static int advance_position(struct file *file, struct transfer *transfer)
{
    int error = MPI_SUCCESS;
    if (transfer->access.pointer == AT_POSITION && !transfer->access.write) {
        int64_t size = 0, there = 0;
        error = file_size(file, &size);
        if (error == MPI_SUCCESS)
            there = tiling_bytes_below(&file->view.tiling, size) - transfer->from;
        there = there < 0 ? 0 : there;
        pthread_mutex_lock(&file->lock);
        if (there < transfer->in_file)
            file->position -= transfer->in_file - there;
        pthread_mutex_unlock(&file->lock);
    }
    transfer->access.pointer = AT_OFFSET;
    return error;
}

int request_start(struct file *file, const struct access *access, MPI_Request *handle)
{
    struct request *request = malloc(sizeof *request);
    *handle = MPI_REQUEST_NULL;
    if (request == NULL)
        return MPI_ERR_NO_MEM;
    *request = (struct request){.file = file, .handle = file->handle};
    /* Nobody waits for others when this returns. */
    note_together(file, access);
    int error = transfer_begin(file, access, &request->transfer);
    bool large = error == MPI_SUCCESS && request->transfer.in_file >= BACKGROUND_BYTES_MIN && may_use_thread();
    if (large)
        error = advance_position(file, &request->transfer);
    else if (error == MPI_SUCCESS)
        error = transfer_do(file, &request->transfer);
    if (error == MPI_SUCCESS)
        error = PMPI_Grequest_start(query, forget, cancel, request, &request->request);
    if (error != MPI_SUCCESS) {
        forget(request);
        return error;
    }
    *handle = request->request;
    if (large && leave_to_thread(request))
        return MPI_SUCCESS;
    if (large)
        request->code = error_code(transfer_do(file, &request->transfer));
    return PMPI_Grequest_complete(*handle);
}

void requests_wait(struct file *file)
{
    pthread_mutex_lock(&lock);
    while (file->pending > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void requests_end(void)
{
    pthread_mutex_lock(&lock);
    bool was_running = running;
    ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (was_running)
        pthread_join(thread, NULL);
}
