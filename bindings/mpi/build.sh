#!/usr/bin/env bash
# Builds the MPI-IO library with a site's own MPI compiler.
#
# usage: bindings/mpi/build.sh MPICC DIRECTORY [FLAG...]
#
# Writes DIRECTORY/libramlace_mpiio_{ompi,mpich,abi}.so, by the MPI that MPICC compiles for (abi: the standard's own binary
# interface, by mpicc_abi), and prints its path; libramlace_mpiio.so leads to the one that was written last, for
# `-lramlace_mpiio`. The C library is found by pkg-config (ramlace.pc), or is that of this checkout.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mpicc=${1:?usage: build.sh MPICC DIRECTORY [FLAG...]}
directory=${2:?usage: build.sh MPICC DIRECTORY [FLAG...]}
shift 2

case $(printf '#include <mpi.h>\n#ifdef OPEN_MPI\nramlace_ompi\n#elif defined(MPI_H_ABI)\nramlace_abi\n#elif defined(MPICH_VERSION)\nramlace_mpich\n#endif\n' |
    "$mpicc" -E -x c - | tail -n 1) in
ramlace_ompi) name=libramlace_mpiio_ompi.so ;;
ramlace_mpich) name=libramlace_mpiio_mpich.so ;;
ramlace_abi) name=libramlace_mpiio_abi.so ;;
*)
    echo "build.sh: $mpicc compiles for no MPI that this library knows: Open MPI, MPICH (and what derives from it), the standard ABI" >&2
    exit 1
    ;;
esac

if ! flags=$(pkg-config --cflags --libs ramlace 2>/dev/null); then
    flags="-I$here/../../crates/capi/include -L$here/../../target/release -lramlace -Wl,-rpath,$here/../../target/release"
fi
mkdir -p "$directory"
# The MPI library is named as needed, for loaders that keep what they load to themselves.
# shellcheck disable=SC2086
"$mpicc" -std=gnu11 -O2 -g -fPIC -shared -fvisibility=hidden -pthread -Wall -Wextra -Werror -Wl,--no-as-needed \
    "$@" "$here"/src/*.c -o "$directory/$name" $flags -ldl -Wl,-soname,"$name" -Wl,-rpath,'$ORIGIN'
ln -sfn "$name" "$directory/libramlace_mpiio.so"
echo "$directory/$name"
