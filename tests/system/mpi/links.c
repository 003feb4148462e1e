/* Names that are links: what is deleted, what is made, and what is refused.
 *
 * usage: links delete|on_close|exclusive FILE */
#include "check.h"

#include <unistd.h>

int main(int argc, char **argv)
{
    const int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    MPI_File file;
    MPI_Init(&argc, &argv);
    if (argc != 3)
        FAIL("usage: %s CASE FILE", argv[0]);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    if (strcmp(argv[1], "delete") == 0) {
        CALL(MPI_File_delete(argv[2], MPI_INFO_NULL));
    } else if (strcmp(argv[1], "on_close") == 0) {
        CALL(MPI_File_open(MPI_COMM_WORLD, argv[2], amode | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file));
        CALL(MPI_File_write_at(file, 0, "on close", 8, MPI_BYTE, MPI_STATUS_IGNORE));
        /* What the name means from here is not what is deleted. */
        CHECK(chdir("/") == 0);
        CALL(MPI_File_close(&file));
    } else {
        REFUSED(MPI_File_open(MPI_COMM_WORLD, argv[2], amode | MPI_MODE_EXCL, MPI_INFO_NULL, &file), MPI_ERR_FILE_EXISTS);
    }
    MPI_Finalize();
    return 0;
}
