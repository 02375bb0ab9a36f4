.DEFAULT_GOAL := help
.PHONY: help demo test check generate bench e2e e2e-hardware

help: ## what there is to make
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' $(MAKEFILE_LIST)

demo: ## two nodes in this process restore objects layer group by layer group, verified, with the bytes counted
	go run ./cmd/spanpool bench layerwise --preset deepseek-v3.2 --pages 8 --ranks 1,2 --requests 2 --offload-ranks 0
	@echo
	@echo "Every byte was verified. wire_range_mib moved for the ranks and wire_background_mib behind their backs; together they are"
	@echo "local_write_mib, what is local now: each byte crossed once."

test: ## all tests; SPANPOOL_REQUIRE=rdma,hip,hip-device,redis,python makes a skipped part a failure
	@sh scripts/test.sh

check: ## the static part: format, vet, staticcheck, and that what is generated is current
	@sh scripts/check.sh

generate: ## mocks, wire and proto (which needs protoc)
	go generate ./ports
	go tool wire ./inject
	sh scripts/proto.sh

bench: ## benchmarks beside the code, the layer-wise workload, and the bars of speed as ratios; BARS=restore-1,mixed-4 runs these bars alone
	@[ -n "$(BARS)" ] || go test -run '^$$' -bench . ./...
	@[ -n "$(BARS)" ] || go run ./cmd/spanpool bench layerwise --preset deepseek-v3.2 --pages 32 --ranks 1 --requests 3 --offload-ranks 0
	go run ./cmd/spanpool bench ratios $(if $(BARS),--bars $(BARS))

e2e: ## the binaries, spoken to from outside
	go test -count=1 -v ./e2e/...

e2e-hardware: ## the same over this host's network address, or over hosts that ssh reaches (SPANPOOL_E2E_HOSTS=a,b), and what was not run
	@sh scripts/e2e-hardware.sh
