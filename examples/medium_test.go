package examples_test

import (
	"context"
	"fmt"

	"github.com/spanpool/spanpool/adapters/boottime"
	"github.com/spanpool/spanpool/adapters/dram"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/ports"
)

// slab is a Medium of the program's own: one buffer of memory that it has anyway. Go heap will do here, since no NIC and no other
// process touches it. A Medium that is meant to be relied on runs porttest's suite.
type slab struct {
	buffers  []ports.Region
	pageSize uint64
}

var _ ports.Medium = (*slab)(nil)

func newSlab(pages, pageSize uint64) *slab {
	return &slab{[]ports.Region{ports.HostRegionOf(make([]byte, pages*pageSize))}, pageSize}
}

func (s *slab) Kind() ports.MediumKind  { return ports.DRAM }
func (s *slab) PageSize() uint64        { return s.pageSize }
func (s *slab) Buffers() []ports.Region { return s.buffers }
func (s *slab) Close() error            { return nil }

// A node over a Medium of the program's own, without peers and without arenas. The object lies on pages of a prime size.
func Example_ownMedium() {
	medium := newSlab(64, 509)
	node, err := app.New(app.Config{ID: "a"}, app.Ports{Clock: boottime.New(), Medium: medium, Copier: dram.NewCopier()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer medium.Close()
	defer node.Close()
	ctx := context.Background()

	object := make([]byte, 1200)
	fmt.Println(node.Put(ctx, "model", "prefix-7", ports.HostRegionOf(object)).Status)
	table := node.Stats().Table
	fmt.Println(table.PagesTotal-table.PagesFree, "pages of", table.PagesTotal)
	// Output:
	// stored
	// 3 pages of 64
}
