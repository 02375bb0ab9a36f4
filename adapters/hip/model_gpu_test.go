//go:build gpu && linux && cgo

package hip

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/adapters/hip/fakehip"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

// modelBytes is several rounds of the bounce buffer of these tests.
const modelBytes = 32 << 10

// modelled is memory of each kind, and what should be in it. Batches copy from those of even numbers to those of odd ones.
type modelled struct {
	regions []ports.Region
	due     [][]byte
}

// TestBatchesCopyWhatTheySay: fragments in strides, which become rows, among others of any length, between every two kinds of memory; an
// error that shows at the wait is the op's that it hit, or none's where the round was repeated.
func TestBatchesCopyWhatTheySay(t *testing.T) {
	for name, o := range map[string]fakehip.Options{"rocm7": {}, "rocm5": {Version: fakehip.ROCm5, WithoutBatch: true}, "cuda": {CUDA: true}} {
		t.Run(name, func(t *testing.T) {
			lib := fake(t, o)
			r := open(t, lib, func(c *Config) { c.BounceBytes, c.Threads = minBounce, 2 })
			m := newModelled(t, r)
			rapid.Check(t, func(rt *rapid.T) {
				ops := m.draw(rt)
				if rapid.Bool().Draw(rt, "a copy fails") {
					lib.FailAsync.Store(719)
				}
				errs := copyAll(t, r.Copier(), ops...)
				lib.FailAsync.Store(0)
				for i, op := range ops {
					if errs[i] != nil { // then its destination is undefined
						errs[i] = copyAll(t, r.Background(), op)[0]
					}
					require.NoError(rt, errs[i])
				}
				m.check(t, rt, r)
			})
		})
	}
}

func newModelled(t *testing.T, r *Runtime) *modelled {
	m := &modelled{}
	for i := range 6 {
		b := make([]byte, modelBytes)
		content.Fill(b, uint64(i), 0)
		m.due = append(m.due, b)
		if i < 2 {
			m.regions = append(m.regions, ports.HostRegionOf(bytes.Clone(b)))
			continue
		}
		on := deviceMemory(r, i/4)
		at := on.New(t, modelBytes)
		on.Write(at, 0, b)
		m.regions = append(m.regions, at)
	}
	return m
}

// draw makes a batch of which no two destinations overlap, and copies it in the model.
func (m *modelled) draw(rt *rapid.T) (ops []ports.CopyOp) {
	dst, src := 2*rapid.IntRange(0, 2).Draw(rt, "dst")+1, 2*rapid.IntRange(0, 2).Draw(rt, "src")
	width := rapid.IntRange(1, 128).Draw(rt, "width")
	dstStride, srcStride := width+rapid.IntRange(0, 70).Draw(rt, "gap there"), width+rapid.IntRange(0, 70).Draw(rt, "gap here")
	rows := rapid.IntRange(0, 100).Draw(rt, "rows")
	dstOff := 0
	for i := range rows {
		ops = m.add(ops, dst, src, dstOff, i*srcStride, width)
		dstOff += dstStride
		if rapid.IntRange(0, 20).Draw(rt, "odd one") == 0 {
			n := rapid.IntRange(1, 100).Draw(rt, "length")
			ops = m.add(ops, dst, 2*rapid.IntRange(0, 2).Draw(rt, "from"), dstOff, rapid.IntRange(0, modelBytes-n).Draw(rt, "at"), n)
			dstOff += n
		}
	}
	n := rapid.IntRange(1, modelBytes).Draw(rt, "long")
	other := (dst + 2) % 6
	return m.add(ops, other, 2*rapid.IntRange(0, 2).Draw(rt, "from"), rapid.IntRange(0, modelBytes-n).Draw(rt, "to"), rapid.IntRange(0, modelBytes-n).Draw(rt, "at"), n)
}

func (m *modelled) add(ops []ports.CopyOp, dst, src, dstOff, srcOff, n int) []ports.CopyOp {
	if dstOff+n > modelBytes || srcOff+n > modelBytes {
		return ops
	}
	copy(m.due[dst][dstOff:dstOff+n], m.due[src][srcOff:])
	return append(ops, ports.CopyOp{Dst: m.regions[dst], DstOff: uint64(dstOff), Src: m.regions[src], SrcOff: uint64(srcOff), Len: uint64(n)})
}

func (m *modelled) check(t *testing.T, rt *rapid.T, r *Runtime) {
	for i, at := range m.regions {
		got := poisoned(modelBytes)
		require.NoError(rt, copyAll(t, r.Copier(), ports.CopyOp{Dst: got, Src: at, Len: modelBytes})[0])
		if !bytes.Equal(got.Bytes(), m.due[i]) {
			rt.Fatalf("region %d holds what no op copied there, or lacks what one did", i)
		}
	}
}
