#!/usr/bin/env bash
# Starts N processes that are ranks of one another:
#   tools/run_ranks.sh N PROGRAM [ARGUMENTS...]
#   tools/run_ranks.sh N MPIRUN_OPTIONS... -- PROGRAM [ARGUMENTS...]
# Sets what Open MPI wants for it: to run as root, to run more ranks than there are cores, not to bind them to cores
# (which their compute threads would share), and to leave processes some seconds to answer their clients before it
# kills them.
set -euo pipefail

if [ $# -lt 2 ] || ! [[ $1 =~ ^[0-9]+$ ]]; then
  echo "usage: tools/run_ranks.sh N [MPIRUN_OPTIONS... --] PROGRAM [ARGUMENTS...]" >&2
  exit 2
fi
n=$1
shift
options=(--quiet --oversubscribe --bind-to none --mca odls_base_sigkill_timeout 2)
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
if [[ $1 == -* ]]; then
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
fi
exec mpirun "${options[@]}" -n "$n" "$@"
