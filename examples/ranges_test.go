package examples_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/inproc"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/inject"
	"github.com/spanpool/spanpool/ports"
)

// Node b reads two layers of an object that node a has. Only their bytes cross, and none crosses a second time.
func Example_readRanges() {
	network := inproc.NewNetwork(inproc.Options{Clock: boottime.New()})
	defer network.Close()
	config := func(id ports.PeerID) inject.Config {
		return inject.Config{
			// The pull would complete the object in the background; without it the figures below are the calls' own.
			Node:        app.Config{ID: id, NoRangedLocalityPrefetch: true},
			MediumBytes: 1 << 20, PageSize: 4 << 10, GetArenaBytes: 1 << 20, PutArenaBytes: inject.Off,
			Endpoint: network.Endpoint(id),
		}
	}
	a, stopA, err := inject.Embedded(config("a"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stopA()
	b, stopB, err := inject.Embedded(config("b"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stopB()
	ctx := context.Background()

	const layer = 10_000 // bytes
	object := append(append(bytes.Repeat([]byte{'x'}, layer), bytes.Repeat([]byte{'y'}, layer)...), bytes.Repeat([]byte{'z'}, layer)...)
	fmt.Println(a.Put(ctx, "model", "prefix-7", ports.HostRegionOf(object)).Status)

	// The last layer comes first in memory: ranges come in any order.
	into := make([]byte, 2*layer)
	batch := ports.GetBatch{
		Namespace: "model",
		Keys:      []string{"prefix-7"},
		End:       []uint32{2}, // the ranges of key 0 are Ranges[0:2]
		Ranges:    []domain.Range{{Off: 2 * layer, Len: layer}, {Off: 0, Len: layer, RegionOff: layer}},
		Regions:   []ports.Memory{{Region: ports.HostRegionOf(into)}},
	}
	results := make([]ports.Result, 1)
	for range 2 {
		if err := b.BatchGetRanges(ctx, &batch, results); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(results[0].Status, results[0].Source, results[0].Fetched, string(into[:1]), string(into[layer:layer+1]))
	}
	fmt.Println("on the wire:", b.Stats().Wire[ports.PurposeGet])
	// Output:
	// stored
	// hit slot 20000 z x
	// hit slot 0 z x
	// on the wire: 20000
}
