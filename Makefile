.DEFAULT_GOAL := help
# What this machine has the libraries for.
RDMA := $(shell printf '\043include <infiniband/verbs.h>\n' | $(or $(CC),cc) -E - >/dev/null 2>&1 && echo rdma)

.PHONY: help build test-rdma demo test test-python check generate bench bench-redis profile e2e e2e-hardware

help: ## what there is to make
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' $(MAKEFILE_LIST)

demo: ## two nodes in this process restore objects layer group by layer group and replay a trace, verified, with the bytes counted
	go run ./cmd/spanpool bench layerwise --preset deepseek-v3.2 --pages 8 --ranks 1,2 --requests 2 --offload-ranks 0
	@echo
	@echo "Every byte was verified. wire_range_mib moved for the ranks and wire_background_mib behind their backs; together they are"
	@echo "local_write_mib, what is local now: each byte crossed once. Now a published trace of requests, over two nodes:"
	@echo
	go run ./cmd/spanpool bench replay --trace testdata/traces/synthetic_trace.jsonl.gz --nodes 2

build: ## bin/spanpool, with rdma where infiniband/verbs.h (Debian: libibverbs-dev) and a C compiler are
	@echo "rdma: $(if $(RDMA),built in,left out, for infiniband/verbs.h or a C compiler is not here)"
	$(if $(RDMA),CGO_ENABLED=1 )go build -tags '$(RDMA)' -o bin/ ./cmd/spanpool

test-rdma: ## verbs without a NIC: Soft-RoCE in a throw-away virtual machine
	@sh scripts/parts/rdma.sh

test: ## all tests; SPANPOOL_REQUIRE=rdma,hip,hip-device,redis,python,browser,structure makes a skipped part a failure
	@sh scripts/test.sh

test-python: ## the Python client's tests alone, against a node that is built here
	@sh scripts/parts/python.sh

check: ## the static part: format, vet, staticcheck, and that what is generated is current
	@sh scripts/check.sh

generate: ## mocks, wire and proto (which needs protoc of 3.21, Debian 12's)
	go generate ./ports
	go tool wire ./inject
	sh scripts/proto.sh
	sh scripts/proto-python.sh

bench: ## measures every bar and shape into docs/benchmarks, each as it is done (an hour on two cores); BARS=restore-1,mixed-4 runs these bars alone
	RUNS=$${RUNS:-3} sh scripts/benchmarks.sh $(if $(BARS),ratios report)

bench-redis: ## ranges of several sizes over sockets, beside redis-server with the same objects, whole objects and bare loops
	go run ./cmd/spanpool bench ranges --redis need

profile: ## what the processors do in layer groups over TCP: the largest costs, and profile/*.pb.gz for go tool pprof
	sh scripts/profile.sh

e2e: ## the binaries, spoken to from outside; SPANPOOL_E2E_CHAOS=10m harms nodes under load for that long
	go test -count=1 -v ./e2e/...

e2e-hardware: ## the same over this host's network address, or over hosts that ssh reaches (SPANPOOL_E2E_HOSTS=a,b), and what was not run
	@sh scripts/e2e-hardware.sh
