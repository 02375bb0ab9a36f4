package app

import (
	"fmt"
	"math"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// shape is what the keys of one pattern share: their spans, and the rows that fit the regions.
type shape struct {
	spanLo, spanHi uint32
	lastRow        uint64
	status         ports.Status // why no key of it can be served
	err            error
}

// addPatterns takes in the keys of a call by patterns.
func (c *getCall) addPatterns(patterns []ports.Pattern) {
	for i := range patterns {
		base := uint32(len(c.own))
		for _, r := range patterns[i].Ranges {
			c.own, c.strides = append(c.own, r.At(0)), append(c.strides, r.Stride)
		}
		c.ranges = c.own
		s := c.layOutPattern(patterns[i].Ranges, base)
		for _, row := range patterns[i].Rows {
			c.addRow(&s, row, patterns[i].Ranges)
		}
	}
}

// layOutPattern does for all keys of a pattern what layOut does for one: it appends the spans, once.
func (c *getCall) layOutPattern(ranges []domain.PatternRange, base uint32) shape {
	s := shape{spanLo: uint32(len(c.spans)), lastRow: math.MaxUint64, status: ports.Invalid}
	own, first := c.own[base:], len(c.order)
	if c.order, c.spans, s.err = domain.AppendSpans(own, c.order, c.spans); s.err != nil {
		return s
	}
	s.spanHi = uint32(len(c.spans))
	for j := first; j < len(c.order); j++ {
		c.order[j] += base
	}
	for j := range ranges {
		r := &ranges[j]
		if s.err = inRegion(c.regions, r.Region, r.Base, r.Len); s.err != nil {
			return s
		}
		last, _ := r.LastRow(c.into[r.Region].Size)
		s.lastRow = min(s.lastRow, last)
	}
	s.status, s.err = ports.NotRegistered, checkMemories(c.regions, c.memories, own)
	return s
}

// addRow takes in one key of a pattern.
func (c *getCall) addRow(s *shape, row uint64, ranges []domain.PatternRange) {
	i, k := c.openKey()
	status, err := s.status, s.err
	if err == nil {
		status, err = ports.Invalid, domain.CheckKey(c.names[i])
	}
	if err == nil && row > s.lastRow {
		err = c.rowError(row, ranges)
	}
	if err != nil {
		c.fail(i, status, err)
		return
	}
	k.row, k.spanLo, k.spanHi = row, s.spanLo, s.spanHi
}

// rowError names the first range that does not fit its region in a row.
func (c *getCall) rowError(row uint64, ranges []domain.PatternRange) error {
	for j := range ranges {
		r := &ranges[j]
		if last, _ := r.LastRow(c.into[r.Region].Size); row > last {
			return &domain.LimitError{What: fmt.Sprintf("row of a pattern, by its range %d", j), Value: row, Limit: last}
		}
	}
	return nil
}
