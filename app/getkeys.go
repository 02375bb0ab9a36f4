package app

import (
	"fmt"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// addKey takes in one key: what can be checked without its size is checked here. A bad key fails alone. A target says how much
// room a whole read has; without one it has the rest of its region.
func (c *getCall) addKey(lo, hi uint32, room *ports.Target) {
	i, k := c.openKey()
	status := ports.Invalid
	err := c.layOut(k, c.names[i], c.ranges[lo:hi], lo, room)
	if err == nil {
		status, err = ports.NotRegistered, checkMemories(c.regions, c.memories, c.ranges[lo:hi])
	}
	if err != nil {
		c.spans = c.spans[:k.spanLo]
		c.fail(i, status, err)
		return
	}
	k.spanHi = uint32(len(c.spans))
}

// openKey begins with the next key; it has no spans yet.
func (c *getCall) openKey() (int, *getKey) {
	i := len(c.keys)
	c.keys = append(c.keys, getKey{spanLo: uint32(len(c.spans)), spanHi: uint32(len(c.spans))})
	c.out[i] = ports.Result{}
	c.open++
	return i, &c.keys[i]
}

// layOut checks a key's ranges and appends its spans.
func (c *getCall) layOut(k *getKey, name string, ranges []domain.Range, base uint32, room *ports.Target) error {
	if err := domain.CheckKey(name); err != nil {
		return err
	}
	if len(ranges) == 1 && ranges[0].Len == domain.Whole {
		return c.layOutWhole(k, ranges[0], base, room)
	}
	first := len(c.order)
	var err error
	if c.order, c.spans, err = domain.AppendSpans(ranges, c.order, c.spans); err != nil {
		return err
	}
	for j := first; j < len(c.order); j++ {
		c.order[j] += base
	}
	for j := range ranges {
		r := &ranges[j]
		if int(r.Region) < len(c.into) && r.RegionOff <= c.into[r.Region].Size && r.Len <= c.into[r.Region].Size-r.RegionOff {
			continue
		}
		if err := inRegion(c.regions, r.Region, r.RegionOff, r.Len); err != nil { // it has the last word, and the words
			return err
		}
	}
	return nil
}

// layOutWhole lays out [0, size) of a size that is not known yet: sizedLocked fills in the span's length.
func (c *getCall) layOutWhole(k *getKey, r domain.Range, base uint32, room *ports.Target) error {
	if r.Off != 0 {
		return &domain.LimitError{What: "offset of a whole read", Value: r.Off, Limit: 0}
	}
	switch {
	case room != nil:
		k.room = room.Len
	case int(r.Region) < len(c.regions) && c.regions[r.Region].Region != nil:
		if all := c.regions[r.Region].Region.Len(); all > r.RegionOff {
			k.room = all - r.RegionOff
		}
	}
	if err := inRegion(c.regions, r.Region, r.RegionOff, k.room); err != nil {
		return err
	}
	k.whole = true
	c.spans = append(c.spans, domain.Span{First: uint32(len(c.order)), Count: 1})
	c.order = append(c.order, base)
	return nil
}

// inRegion refuses memory outside of the call's region table.
func inRegion(regions []ports.Memory, region uint32, off, n uint64) error {
	if int(region) >= len(regions) {
		return &domain.LimitError{What: "region of the call's table", Value: uint64(region), Limit: uint64(len(regions))}
	}
	if regions[region].Region == nil {
		return fmt.Errorf("region %d of the call's table has no memory: %w", region, domain.ErrInvalid)
	}
	if all := regions[region].Region.Len(); off > all || n > all-off {
		return fmt.Errorf("region %d: %d bytes at %d of %d: %w", region, n, off, all, domain.ErrInvalid)
	}
	return nil
}

// flatTable makes the pages by which the caller's regions and the arena are laid out.
func (c *getCall) flatTable() {
	for len(c.flat) < len(c.regions)+1 {
		c.flat = append(c.flat, domain.PageRef{Buffer: uint32(len(c.flat))})
	}
	for i := range c.regions {
		var n uint64
		if r := c.regions[i].Region; r != nil { // no range names one that is not there: inRegion refused it
			n = r.Len()
		}
		c.into = append(c.into, domain.Flat(c.flat[i:i+1], n))
	}
}

// rangeAt is the range at place o of the order, of key k.
func (c *getCall) rangeAt(k *getKey, o uint32) domain.Range {
	r := c.ranges[c.order[o]]
	if k.whole {
		r.Len = k.size
	}
	if len(c.strides) > 0 {
		r.RegionOff += k.row * c.strides[c.order[o]]
	}
	return r
}

func (c *getCall) tiles(k *getKey) bool {
	return domain.Tiles(c.spans[k.spanLo:k.spanHi], k.size)
}

// sizedLocked takes in a key's size, and fails the key when its ranges or its room do not fit.
func (c *getCall) sizedLocked(i int, size uint64) bool {
	k := &c.keys[i]
	k.size = size
	if k.whole {
		if size > k.room {
			c.finishLocked(i, ports.TooLarge, &domain.LimitError{What: "object bytes for the room given", Value: size, Limit: k.room})
			return false
		}
		c.spans[k.spanLo].Len = size
		return true
	}
	if err := domain.SpansInBounds(c.spans[k.spanLo:k.spanHi], size); err != nil {
		c.finishLocked(i, ports.Invalid, err)
		return false
	}
	return true
}
