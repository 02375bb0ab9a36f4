#!/bin/sh
# What the machine of vm.sh runs first. Two devices at the ends of a veth pair; packets between the two addresses take the pair, and not
# the short way through the kernel, by rules of routing, so that delay, loss and a link that is down are real. (Soft-RoCE in a network
# namespace delivers nothing.)
export PATH=/bin HOME=/ TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/infiniband
while read -r m; do insmod "/mods/$m" || echo "module $m cannot be loaded"; done </mods/order

ip link set lo up
ip link add veth0 type veth peer name veth1
for i in 0 1; do
	ip link set "veth$i" mtu 9000
	ip link set "veth$i" up
	ip addr add "10.78.0.$((i + 1))/32" dev "veth$i"
done
for i in all default veth0 veth1 lo; do
	echo 1 >"/proc/sys/net/ipv4/conf/$i/accept_local"
	echo 0 >"/proc/sys/net/ipv4/conf/$i/rp_filter"
done
ip rule add pref 100 lookup local
ip rule del pref 0
ip route add 10.78.0.2 dev veth0 table 101
ip route add 10.78.0.1 dev veth1 table 102
ip rule add pref 10 iif lo from 10.78.0.1 to 10.78.0.2 lookup 101
ip rule add pref 11 iif lo from 10.78.0.2 to 10.78.0.1 lookup 102
ip neigh replace 10.78.0.2 lladdr "$(cat /sys/class/net/veth1/address)" dev veth0 nud permanent
ip neigh replace 10.78.0.1 lladdr "$(cat /sys/class/net/veth0/address)" dev veth1 nud permanent
rdma link add rxe0 type rxe netdev veth0
rdma link add rxe1 type rxe netdev veth1

# A port is up, and its table of GIDs is filled, a moment after its interface.
n=0
until [ "$(rdma link | grep -c 'state ACTIVE')" = 2 ] && grep -q . /sys/class/infiniband/rxe1/ports/1/gids/1; do
	n=$((n + 1))
	[ $n -lt 100 ] || break
	sleep 0.1
done
rdma link
sh /guest.sh
rc=$?
(cd /out && tar -cz . | base64 | sed 's/^/VM_OUT /')
echo "VM_RC=$rc"
poweroff -f
