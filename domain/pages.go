package domain

// Pages allocates the pages of a medium's buffers: a bitmap per buffer, contiguous run first, then scattered; all or nothing.
type Pages struct{ scatter bool }

// NewPages makes an allocator over buffers of the given page counts. With scatter no two pages of an allocation follow each
// other where that can be had (for tests: every suite runs so once).
func NewPages(bufferPages []uint32, scatter bool) *Pages { panic("todo") }

// Allocate fills dst with len(dst) free pages, or reports false and changes nothing.
func (p *Pages) Allocate(dst []PageRef) bool { panic("todo") }

// Release returns pages. Precondition: each is allocated; a page released twice is a bug and panics.
func (p *Pages) Release(pages []PageRef) { panic("todo") }

// Free is the number of free pages.
func (p *Pages) Free() uint64 { panic("todo") }

// Total is the number of pages.
func (p *Pages) Total() uint64 { panic("todo") }
