package porttest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

// BenchmarkTransport is the benchmark half of RunTransport: one call at a time reads or writes the fragments of 32 objects.
func BenchmarkTransport(b *testing.B, open func(t testing.TB) *TransportHarness) {
	for _, shape := range []struct{ fragment, each uint64 }{{64, 1}, {1728, 61}, {37_440, 4}, {64 << 10, 4}} {
		for _, dir := range []ports.Direction{ports.Read, ports.Write} {
			name := fmt.Sprintf("dir=%s/fragment=%dB/each=%d/objects=32", []string{"read", "write"}[dir], shape.fragment, shape.each)
			b.Run(name, func(b *testing.B) {
				x := newExchange(b, open(b))
				if dir == ports.Write {
					if why := x.lacksWrites(); why != "" {
						b.Skip(why)
					}
				}
				benchmarkTransfers(b, x, dir, shape.fragment, shape.each)
			})
		}
	}
}

func benchmarkTransfers(b *testing.B, x *exchange, dir ports.Direction, fragment, each uint64) {
	const objects = 32
	var token ports.GrantToken
	if dir == ports.Write {
		pages := make([]domain.PageRef, bufferPages)
		for i := range pages {
			pages[i].Page = uint32(i)
		}
		_, token = x.grant(b, x.Asker, pages...)
	}
	local := x.local(b, int(objects*each*fragment))
	ops := make([][]ports.Segment, objects)
	for i := range uint64(objects * each) {
		off := i * (fragment + 64) % (bufferBytes - fragment) // not adjacent
		ops[i/each] = append(ops[i/each], piece(0, off, local, i*fragment, fragment))
	}
	batch := x.batch(dir, ports.PurposeGet, token, ops...)
	l, q := x.link(b), ports.NewCompletions()
	done := make([]ports.Completion, 0, objects)
	b.SetBytes(int64(objects * each * fragment))
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch.Ops {
			batch.Ops[i].Deadline = x.soon()
		}
		require.NoError(b, l.Submit(batch, q))
		for done = done[:0]; len(done) < objects; {
			done, _ = q.Take(b.Context(), patience, done)
		}
	}
	for _, c := range done {
		require.NoError(b, c.Err)
	}
}
