package ports

import "time"

// BatchKind is what a batch asked for, and in which form.
type BatchKind uint8

// The kinds.
const (
	BatchGetRanges BatchKind = iota
	BatchGetWhole
	BatchPutRanges
	BatchPutWhole
	NumBatchKinds
)

var batchKindNames = [NumBatchKinds]string{"get_ranges", "get_whole", "put_ranges", "put_whole"}

func (k BatchKind) String() string { return batchKindNames[k] }

// BatchSample is a batch that has ended.
type BatchSample struct {
	Kind BatchKind
	Took time.Duration // from when it was taken in; the wait for other nodes included

	// Bytes that reached their destination, by the way they came. Of a put: FromLocal into slots of this node, FromArena to a
	// peer by way of the arena. All zero: nothing was hit or stored.
	Bytes [NumSources]uint64
}

// Observer is told of every batch of a Pool as it ends: once for each that was taken in, malformed ones left out, whatever became
// of its keys. The calling goroutine is the batch's own, and holds no lock: what Batch takes, the batch takes longer. It must not
// block, allocate, or call the pool. Safe for parallel use.
type Observer interface {
	Batch(s BatchSample)
}
