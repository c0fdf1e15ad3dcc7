#!/bin/sh
# keep_log.sh DIR COMMAND...: runs a compiler and keeps what it prints in DIR/<object file>.log; shows it only on failure.
set -u
dir=$1
shift
mkdir -p "$dir"
object=unknown
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$(basename "$argument")
  previous=$argument
done
if "$@" >"$dir/$object.log" 2>&1; then
  exit 0
else
  code=$?
  cat "$dir/$object.log" >&2
  exit $code
fi
