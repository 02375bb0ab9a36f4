package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNoByteOfAStampedObjectChangesUnseen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		at := rapid.Uint64Range(0, 9000).Draw(rt, "at")
		size := rapid.Uint64Range(1, 20_000).Draw(rt, "size")
		s, err := openStampedSource(t.Context(), NewLimiter(1), "offload/0", at+size+rapid.Uint64Range(0, 5000).Draw(rt, "behind"))
		require.NoError(rt, err)
		defer s.close()
		s.stamp(at, size, contentKey("a"))
		a := s.object(at, contentKey("a"))
		b := s.b[at:][:size]
		require.Negative(rt, a.check(b))

		wrong := rapid.Uint64Range(0, size-1).Draw(rt, "wrong")
		b[wrong] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		require.Equal(rt, int(wrong), a.check(b))
		b[wrong] = a.byteAt(wrong)
		require.Negative(rt, a.check(b), "byteAt is what was there")
	})
}

func TestStampsTellTheObjectsOfOnePlaceApart(t *testing.T) {
	s, err := openStampedSource(t.Context(), NewLimiter(1), "offload/0", 3*stampStep)
	require.NoError(t, err)
	defer s.close()
	const size = 2*stampStep + 100
	s.stamp(0, size, contentKey("old"))
	before := append([]byte(nil), s.b[:size]...)
	s.stamp(0, size, s.key)
	s.stamp(0, size, contentKey("new"))
	want := s.object(0, contentKey("new"))
	for page := range 3 {
		b := append([]byte(nil), s.b[:size]...)
		copy(b[page*stampStep:min((page+1)*stampStep, size)], before[page*stampStep:])
		require.GreaterOrEqual(t, want.check(b), page*stampStep, "a page of the object before")
	}
}

func TestAStampIsTakenBack(t *testing.T) {
	s, err := openStampedSource(t.Context(), NewLimiter(1), "offload/0", 3*stampStep)
	require.NoError(t, err)
	defer s.close()
	for _, at := range []uint64{0, 8, 1001} {
		s.stamp(at, 2*stampStep, contentKey("a"))
		s.stamp(at, 2*stampStep, s.key)
		require.Negative(t, objectContent{key: s.key}.check(s.b), "at %d", at)
	}
}
