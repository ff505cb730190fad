#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest, in the machine's own root: makes the network, runs the job that boot.py left in the ctl share, and
# switches the power off. What the job prints goes through two virtio ports, its exit status into a file.
ctl=/run/rail/ctl
exec </dev/null

power_off() {
  sync
  echo o >/proc/sysrq-trigger
  sleep 60
}

fail() {
  echo "$*" >$ctl/trouble
  echo "lab: $*"
  power_off
}

port() { # the device of the virtio port with that name; there is no udev to make the links
  local name
  for name in /sys/class/virtio-ports/*/name; do
    [[ $(<"$name") == "$1" ]] && name=${name%/name} && echo "/dev/${name##*/}" && return
  done
  fail "no virtio port $1"
}

source $ctl/job.sh || fail "the job cannot be read"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
ulimit -l unlimited
ulimit -c 0
ulimit -n 65536
bash -e $ctl/network.sh 2>$ctl/network.log || fail "no network: $(head -n 3 $ctl/network.log)"
read -r up _ </proc/uptime
echo "$up" >$ctl/ready

export RAIL_LAB_GUEST=1 RAIL_LAB_OUT=/run/rail/out RAIL_LAB_TOPOLOGY=$ctl/topology.json
cd "$RAIL_LAB_TOP" || fail "no directory $RAIL_LAB_TOP"
if [[ -n $RAIL_LAB_SHELL ]]; then
  # Without the user's start-up files, which may take an emulated minute.
  PS1='lab:\w\$ ' setsid -c bash --norc -i </dev/hvc0 >/dev/hvc0 2>&1
  echo $? >$ctl/status
  power_off
fi

# Pipes, because a port can be opened once only, and a program may open /dev/stdout anew.
mkfifo /run/rail/stdout /run/rail/stderr
cat /run/rail/stdout >"$(port lab.stdout)" &
pumps=$!
cat /run/rail/stderr >"$(port lab.stderr)" &
pumps="$pumps $!"
setsid bash -c "$RAIL_LAB_JOB" >/run/rail/stdout 2>/run/rail/stderr
echo $? >$ctl/status.new
# Processes that the job left behind still hold the pipes: their later output is not waited for.
for _ in {1..20}; do
  kill -0 $pumps 2>/dev/null || break
  sleep 0.1
done
mv $ctl/status.new $ctl/status
power_off
