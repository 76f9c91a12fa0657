#!/usr/bin/env bash
# Ranks on two hosts, which are network namespaces of this machine: the same scores as one process, and a rank that
# is killed on the other host ends them all. two_hosts_test.sh PERIGEE RUN_RANKS MODEL INPUT
# Exit status 77 (skipped) where namespaces cannot be made.
set -euo pipefail
perigee=$1 run_ranks=$2 model=$3 input=$4

if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! command -v unshare >/dev/null; then exit 77; fi
work=$(mktemp -d)
a=perigee-a-$$ b=perigee-b-$$
cleanup() {
  for host in "$a" "$b"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 || true
    ip netns del "$host" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$a" 2>/dev/null || exit 77
ip netns add "$b"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b" || exit 77
n=1
for host in "$a" "$b"; do
  ip -n "$host" link set lo up
  ip -n "$host" addr add "10.99.0.$n/24" dev veth0
  ip -n "$host" link set veth0 up
  n=$((n + 1))
done

# What mpirun starts in place of ssh: AGENT [OPTIONS] HOST COMMAND.
cat >"$work/agent" <<'AGENT'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; exec $*"
AGENT
chmod +x "$work/agent"
printf '%s slots=2\n' "$a" "$b" >"$work/hosts"
(cat /etc/hosts; echo "10.99.0.1 $a"; echo "10.99.0.2 $b") >"$work/etc_hosts"

# perigee with four ranks, two on each host, started from the first.
on_both() {
  ip netns exec "$a" unshare --uts --mount bash -c '
    hostname "$1"; mount --bind "$2/etc_hosts" /etc/hosts; work=$2 run_ranks=$3; shift 3
    exec "$run_ranks" 4 --hostfile "$work/hosts" --mca plm_rsh_agent "$work/agent" --mca btl_tcp_if_include veth0 \
      --mca oob_tcp_if_include veth0 -- "$@"' bash "$a" "$work" "$run_ranks" "$perigee" "$@" \
    --model-path "$model" --tp 4 --attn-cp-size 4 --enable-prefill-cp --cp-strategy zigzag
}

on_both score --input "$input" --output "$work/two_hosts.json"
"$perigee" score --model-path "$model" --input "$input" --output "$work/one_process.json"
cmp "$work/one_process.json" "$work/two_hosts.json"
echo "the same bits on two hosts"

: >"$work/out"
on_both serve --port 0 >"$work/out" 2>"$work/err" &
server=$!
for _ in $(seq 600); do
  grep -q 'perigee is listening' "$work/out" && break
  kill -0 $server || { cat "$work/err"; exit 1; }
  sleep 0.1
done
victim=
for pid in $(ip netns pids "$b"); do
  if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=2; then victim=$pid; fi
done
[ -n "$victim" ]
kill -9 "$victim"
for _ in $(seq 100); do
  kill -0 $server 2>/dev/null || break
  sleep 0.1
done
if kill -0 $server 2>/dev/null; then echo "mpirun is still there after 10 s"; exit 1; fi
status=0
wait $server || status=$?
[ $status -ne 0 ]
grep -q "rank 2 on $b is gone" "$work/err" || { cat "$work/err"; exit 1; }
for host in "$a" "$b"; do
  if [ -n "$(ip netns pids "$host")" ]; then echo "processes are left on $host"; exit 1; fi
done
echo "a rank killed on the other host ended all"
