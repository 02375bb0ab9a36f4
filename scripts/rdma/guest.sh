#!/bin/sh
# What make test-rdma runs in the machine of vm.sh. Of tests that pass a line each is shown, of others everything.
export SPANPOOL_E2E_BINARY=/bin/spanpool SPANPOOL_E2E_RDMA=rxe0,rxe1 SPANPOOL_E2E_GPU_LIBRARY=/bin/libfakegpu.so
# The GPU's runtime has one device, is of version 70051831 and has 64 MiB: the first three of its 18 words.
{
	printf '\001\000\000\000\000\000\000\000\367\347\054\004\000\000\000\000\000\000\000\004\000\000\000\000'
	head -c 120 /dev/zero
} >/tmp/fakegpu
rc=0
show() {
	grep -vE '^=== |\[rapid\] OK|^[[:space:]]{4,}--- PASS' "/tmp/$1"
	[ "$2" = 0 ] || rc=1
}
rdma.test -test.v -test.timeout 600s -test.coverprofile /out/cover -rapid.checks 30 >/tmp/adapter 2>&1
show adapter $?
e2e.test -test.v -test.timeout 400s -test.run '^TestRDMA' >/tmp/e2e 2>&1
show e2e $?
spanpool doctor rdma || rc=1
# Soft-RoCE takes no memory of another device, which has to be said.
spanpool doctor gpu --gpu-library "$SPANPOOL_E2E_GPU_LIBRARY" >/tmp/gpu || rc=1
cat /tmp/gpu
grep -q 'lent memory and a NIC .*the NIC refused it: .*ibv_reg_dmabuf_mr' /tmp/gpu || rc=1
spanpool bench layerwise --transport rdma --pages 4 --ranks 1 --layers 8 --layer-group 2 --requests 2 --offload-ranks 0 --output csv || rc=1
spanpool bench rdma --sizes 4KiB,64KiB --depths 1,8 --time 500ms || rc=1
exit $rc
