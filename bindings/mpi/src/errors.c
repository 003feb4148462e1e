/* Errors: the standard's classes, with a sentence of the C library where it has one. */
#include "mpiio.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* More than the standard has. */
#define CLASSES_MAX 128

/* The class that error_class() has returned last, until it was raised or the call went well; and what ramlace_error() said then,
 * for other calls of the C library may come before it is raised. */
static __thread int told;
static __thread char sentence[MPI_MAX_ERROR_STRING];

static int class_of_errno(void)
{
    switch (errno) {
    case ENOENT:
        return MPI_ERR_NO_SUCH_FILE;
    case EEXIST:
        return MPI_ERR_FILE_EXISTS;
    case EACCES:
    case EPERM:
        return MPI_ERR_ACCESS;
    case ENOSPC:
        return MPI_ERR_NO_SPACE;
    case EROFS:
        return MPI_ERR_READ_ONLY;
    case EBUSY:
        return MPI_ERR_FILE_IN_USE;
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
        return MPI_ERR_BAD_FILE;
    default:
        return MPI_ERR_IO;
    }
}

int error_class(void)
{
    told = class_of_errno();
    snprintf(sentence, sizeof sentence, "%s", ramlace_error());
    return told;
}

int error_of_machine(void)
{
    told = MPI_SUCCESS;
    return class_of_errno();
}

struct failure error_keep(int class)
{
    struct failure failure = {class, ""};
    if (class != MPI_SUCCESS && class == told)
        strcpy(failure.sentence, sentence);
    told = MPI_SUCCESS;
    return failure;
}

int error_retell(const struct failure *failure)
{
    if (failure->class != MPI_SUCCESS && failure->sentence[0] != '\0') {
        told = failure->class;
        strcpy(sentence, failure->sentence);
    }
    return failure->class;
}

const char *error_text(int class, char text[MPI_MAX_ERROR_STRING])
{
    int length;
    if (class == told)
        return sentence;
    return PMPI_Error_string(class, text, &length) == MPI_SUCCESS ? text : "";
}

/* A code of this class whose string is `text`; the class itself where the MPI library gives no such code. MPICH 4.0 makes
 * one for its own classes whose string is another one's. */
static int code_with_text(int class, const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int codes[CLASSES_MAX];
    char back[MPI_MAX_ERROR_STRING];
    int length;
    if (class < 0 || class >= CLASSES_MAX)
        return class;
    pthread_mutex_lock(&lock);
    int code = codes[class];
    if (code == 0 && PMPI_Add_error_code(class, &code) != MPI_SUCCESS)
        code = class;
    if (code != class && (PMPI_Add_error_string(code, text) != MPI_SUCCESS ||
                          PMPI_Error_string(code, back, &length) != MPI_SUCCESS || strcmp(back, text) != 0))
        code = class;
    codes[class] = code;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Open MPI ends the program when MPI_FILE_NULL's handler is called by name: a handle with the same one stands in. */
static int call_default(int code)
{
    MPI_File stand_in;
    if (handle_take(&stand_in) != MPI_SUCCESS)
        return code;
    PMPI_File_call_errhandler(stand_in, code);
    handle_give_back(stand_in);
    return code;
}

int error_code(int class)
{
    int code = class;
    if (class != MPI_SUCCESS && class == told)
        code = code_with_text(class, sentence);
    told = MPI_SUCCESS;
    return code;
}

int error_raise(struct file *file, int class)
{
    int code = error_code(class);
    if (code == MPI_SUCCESS)
        return MPI_SUCCESS;
    if (file == NULL)
        return call_default(code);
    PMPI_File_call_errhandler(file->handle, code);
    return code;
}
