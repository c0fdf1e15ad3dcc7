#!/bin/sh
# test_pkg_config.sh CC PKG_CONFIG_DIRECTORY SOURCE SCRATCH STATIC: builds and runs a C program by what pkg-config says,
# linked to the shared library and, where STATIC is 1, to nothing but static libraries.
set -eu
cc=$1 directory=$2 source=$3 scratch=$4 static=$5
expected='o[0] = 0
o[1] = 0.5
o[2] = 1
o[3] = 1.5'
export PKG_CONFIG_PATH="$directory"
unset PKG_CONFIG_LIBDIR

check() { # check NAME: runs a program
  got=$("$scratch/$1")
  [ "$got" = "$expected" ] || { echo "$1 printed: $got" >&2; exit 1; }
}
mkdir -p "$scratch"
echo "fa3 $(pkg-config --modversion fa3)"
# shellcheck disable=SC2046
"$cc" "$source" -o "$scratch/shared" $(pkg-config --cflags --libs fa3)
LD_LIBRARY_PATH=$(pkg-config --variable=libdir fa3) check shared
if [ "$static" = 1 ]; then
  # shellcheck disable=SC2046
  "$cc" -static "$source" -o "$scratch/static" $(pkg-config --static --cflags --libs fa3)
  check static
fi
