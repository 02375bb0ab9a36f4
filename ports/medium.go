package ports

import "context"

//go:generate go tool mockgen -source=medium.go -destination=../mocks/medium.go -package=mocks

// MediumKind is where the bytes are.
type MediumKind uint8

// The kinds of medium.
const (
	DRAM MediumKind = iota
	HBM
)

// Medium owns pooled memory. It knows buffers, not slots. An arena is a Medium with one buffer.
type Medium interface {
	Kind() MediumKind
	PageSize() uint64
	// Buffers returns the same regions at every call; each is a multiple of PageSize. PageRef.Buffer indexes it.
	Buffers() []Region
	// Close unmaps. Precondition: every transport that registered a buffer has let go of it.
	Close() error
}

// CopyOp copies Len bytes between two local regions. With Sum a Copier that can makes the CRC-32C of the bytes that it stored, and
// writes it to CRC, and true to Summed. It loads each byte once, for both, or sums it where it stored it: the source may change under
// it. Any Copier may leave Summed as it was, and does when the op fails.
type CopyOp struct {
	Dst, Src       Region
	DstOff, SrcOff uint64
	Len            uint64
	Sum, Summed    bool
	CRC            uint32
}

// Copier moves bytes between local regions of every kind that its node has.
type Copier interface {
	// Copy fills errs[i] for ops[i] (nil for one that was done; len(errs) == len(ops)) and returns when no op touches memory
	// any more, whatever ctx does. A context that ends leaves the ops that were not begun with its cause. An op outside of
	// its regions fails with ErrBounds and copies nothing. It keeps neither slice, writes to ops what they ask for (CopyOp.Sum)
	// and nothing else, and allocates nothing in steady state.
	// Safe for parallel use.
	Copy(ctx context.Context, ops []CopyOp, errs []error)
}
