package domain

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Pages allocates the pages of a medium's buffers: a bitmap per buffer, contiguous run first, then scattered; all or nothing.
type Pages struct {
	buffers     []bitmap
	total, free uint64
	next        PageRef // where the next search begins: behind the last page taken, or looked at in vain
	scatter     bool
}

// maxRunsTried bounds the search for a contiguous run: in a medium full of holes too small it would look at every hole, under
// the caller's lock. The next search goes on where this one stopped. Arbitrary; some ten microseconds.
const maxRunsTried = 1024

// NewPages makes an allocator over buffers of the given page counts. With scatter no two pages of an allocation follow each
// other where that can be had (for tests: every suite runs so once).
func NewPages(bufferPages []uint32, scatter bool) *Pages {
	p := &Pages{buffers: make([]bitmap, len(bufferPages)), scatter: scatter}
	for i, n := range bufferPages {
		p.buffers[i] = newBitmap(n)
		p.total += uint64(n)
	}
	p.free = p.total
	return p
}

// Allocate fills dst with len(dst) free pages, or reports false and changes nothing.
func (p *Pages) Allocate(dst []PageRef) bool {
	switch {
	case uint64(len(dst)) > p.free:
		return false
	case len(dst) == 0:
		return true
	case p.scatter:
		p.takeSpread(dst)
	case !p.takeContiguous(dst):
		p.takeAny(dst)
	}
	p.free -= uint64(len(dst))
	return true
}

// takeContiguous takes the next run that is long enough: it looks at what follows p.next, at the other buffers, and at
// last at what comes before p.next.
func (p *Pages) takeContiguous(dst []PageRef) bool {
	start, tries := p.next, maxRunsTried
	for i := 0; i <= len(p.buffers); i++ {
		buffer := (start.Buffer + uint32(i)) % uint32(len(p.buffers))
		b := &p.buffers[buffer]
		from, until := uint32(0), b.pages
		switch i {
		case 0:
			from = start.Page
		case len(p.buffers):
			until = start.Page
		}
		page, ok := b.findRun(from, until, uint64(len(dst)), &tries)
		if ok {
			p.take(dst, PageRef{buffer, page})
			return true
		}
		if tries == 0 {
			p.next = PageRef{buffer, page}
			return false
		}
	}
	return false
}

// takeAny takes free pages as they come.
func (p *Pages) takeAny(dst []PageRef) {
	for len(dst) > 0 {
		b := &p.buffers[p.next.Buffer]
		page, ok := b.nextFree(p.next.Page)
		if !ok {
			p.next = PageRef{Buffer: (p.next.Buffer + 1) % uint32(len(p.buffers))}
			continue
		}
		n := b.runLen(page, uint32(len(dst)))
		p.take(dst[:n], PageRef{p.next.Buffer, page})
		dst = dst[n:]
	}
}

// take hands out the free pages from first on.
func (p *Pages) take(dst []PageRef, first PageRef) {
	p.buffers[first.Buffer].set(first.Page, uint32(len(dst)), false)
	for i := range dst {
		dst[i] = PageRef{first.Buffer, first.Page + uint32(i)}
	}
	p.next = PageRef{first.Buffer, first.Page + uint32(len(dst))}
}

// takeSpread leaves out the page after each one that it takes, and comes back for those only when it must. Pages are named
// in descending order: no page follows its neighbour even then.
func (p *Pages) takeSpread(dst []PageRef) {
	all := dst
	for _, stride := range [...]uint32{2, 1} {
		for i := range p.buffers {
			b := &p.buffers[i]
			page, ok := b.nextFree(0)
			for ; ok && len(dst) > 0; page, ok = b.nextFree(page + stride) {
				p.take(dst[:1], PageRef{uint32(i), page})
				dst = dst[1:]
			}
		}
	}
	slices.SortFunc(all, func(x, y PageRef) int {
		return cmp.Or(cmp.Compare(y.Page, x.Page), cmp.Compare(x.Buffer, y.Buffer))
	})
}

// Release returns pages. Precondition: each is allocated; a page released twice is a bug and panics.
func (p *Pages) Release(pages []PageRef) {
	for _, ref := range pages {
		if !p.allocated(ref) {
			panic(fmt.Sprintf("domain: release of page %d of buffer %d, which is not allocated", ref.Page, ref.Buffer))
		}
		p.buffers[ref.Buffer].set(ref.Page, 1, true)
	}
	p.free += uint64(len(pages))
}

// allocated reports whether ref is a page that is handed out.
func (p *Pages) allocated(ref PageRef) bool {
	return int(ref.Buffer) < len(p.buffers) && ref.Page < p.buffers[ref.Buffer].pages &&
		!p.buffers[ref.Buffer].isFree(ref.Page)
}

// Free is the number of free pages.
func (p *Pages) Free() uint64 { return p.free }

// Total is the number of pages.
func (p *Pages) Total() uint64 { return p.total }

// bitmap is the free pages of one buffer. In a full medium free pages are rare: the summary finds the words that have any.
type bitmap struct {
	words   []uint64 // a bit per page, set when it is free
	summary []uint64 // a bit per word, set when the word is not zero
	pages   uint32
	free    uint32
}

func newBitmap(pages uint32) bitmap {
	words := (uint64(pages) + 63) / 64
	b := bitmap{words: make([]uint64, words), summary: make([]uint64, (words+63)/64), pages: pages}
	b.set(0, pages, true)
	return b
}

func (b *bitmap) isFree(page uint32) bool { return b.words[page/64]>>(page%64)&1 != 0 }

// set makes n pages from page free, or not free. Precondition: all of them are in the other state.
func (b *bitmap) set(page, n uint32, free bool) {
	for left := n; left > 0; {
		word, lo := page/64, page%64
		k := min(left, 64-lo)
		b.words[word] ^= ^uint64(0) >> (64 - k) << lo
		if b.words[word] != 0 {
			b.summary[word/64] |= 1 << (word % 64)
		} else {
			b.summary[word/64] &^= 1 << (word % 64)
		}
		page, left = page+k, left-k
	}
	if free {
		b.free += n
	} else {
		b.free -= n
	}
}

// nextFree is the first free page at or after from.
func (b *bitmap) nextFree(from uint32) (uint32, bool) {
	if from >= b.pages {
		return 0, false
	}
	word := from / 64
	if w := b.words[word] >> (from % 64) << (from % 64); w != 0 {
		return word*64 + uint32(bits.TrailingZeros64(w)), true
	}
	word++ // the summary knows whether any word from here on has a free page
	for s := word / 64; int(s) < len(b.summary); s++ {
		w := b.summary[s]
		if s == word/64 {
			w = w >> (word % 64) << (word % 64)
		}
		if w != 0 {
			word = s*64 + uint32(bits.TrailingZeros64(w))
			return word*64 + uint32(bits.TrailingZeros64(b.words[word])), true
		}
	}
	return 0, false
}

// runLen is how many pages from page on are free, counted up to limit.
func (b *bitmap) runLen(page, limit uint32) uint32 {
	var n uint32
	for n < limit && page+n < b.pages {
		lo := (page + n) % 64
		k := uint32(bits.TrailingZeros64(^(b.words[(page+n)/64] >> lo)))
		n += min(k, 64-lo)
		if k < 64-lo {
			break
		}
	}
	return min(n, limit)
}

// findRun looks for a run of n free pages that begins in [from, until). It returns the run's first page, or where it stopped
// because it had no tries left.
func (b *bitmap) findRun(from, until uint32, n uint64, tries *int) (uint32, bool) {
	if n > uint64(b.free) {
		return 0, false
	}
	for *tries > 0 {
		page, ok := b.nextFree(from)
		if !ok || page >= until {
			return 0, false
		}
		got := b.runLen(page, uint32(n))
		if uint64(got) == n {
			return page, true
		}
		from = page + got
		*tries--
	}
	return from, false
}
