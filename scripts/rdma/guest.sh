#!/bin/sh
# What make test-rdma runs in the machine of vm.sh. Of tests that pass a line each is shown, of others everything.
export SPANPOOL_E2E_BINARY=/bin/spanpool SPANPOOL_E2E_RDMA=rxe0,rxe1
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
spanpool bench layerwise --transport rdma --pages 4 --ranks 1 --layers 8 --layer-group 2 --requests 2 --offload-ranks 0 --output csv || rc=1
spanpool bench rdma --sizes 4KiB,64KiB --depths 1,8 --time 500ms || rc=1
exit $rc
