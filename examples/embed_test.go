// Package examples_test shows what a program does first: embed a node, read ranges of an object that another node has, plug in memory
// of its own, and ask the daemon of its host.
package examples_test

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/inject"
	"github.com/spanpool/spanpool/ports"
)

// A node inside of this program: put an object, and read it back.
func Example_embed() {
	node, stop, err := inject.Embedded(inject.Config{Node: app.Config{ID: "a"}, MediumBytes: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	ctx := context.Background()

	put := node.Put(ctx, "model", "prefix-7", ports.HostRegionOf([]byte("the bytes of one page")))
	into := make([]byte, put.Size)
	got := node.Get(ctx, "model", "prefix-7", ports.HostRegionOf(into))
	fmt.Printf("%v, %v from %v: %s\n", put.Status, got.Status, got.Source, into)
	// Output: stored, hit from local: the bytes of one page
}
