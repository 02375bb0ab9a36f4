package inproc

// fifo is a queue over one growing ring; it keeps its room. The zero value is empty.
type fifo[T any] struct {
	ring []T // INVARIANT: its length is zero or a power of two
	head int
	n    int
}

func (f *fifo[T]) len() int { return f.n }

// front points at the oldest. Precondition: it is not empty.
func (f *fifo[T]) front() *T { return &f.ring[f.head] }

func (f *fifo[T]) push(v T) {
	if f.n == len(f.ring) {
		f.grow()
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = v
	f.n++
}

// pop takes the oldest out. Precondition: it is not empty.
func (f *fifo[T]) pop() T {
	var zero T
	v := f.ring[f.head]
	f.ring[f.head] = zero
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	return v
}

func (f *fifo[T]) grow() {
	bigger := make([]T, max(8, 2*len(f.ring)))
	k := copy(bigger, f.ring[f.head:])
	copy(bigger[k:], f.ring[:f.head])
	f.ring, f.head = bigger, 0
}
