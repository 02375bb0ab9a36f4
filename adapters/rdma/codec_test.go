package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
)

func sampleOffer() offer {
	return offer{nonce: [16]byte{1, 2}, at: portAddr{mtu: 5, reads: 16, lid: 0x1234}, gids: [][16]byte{{15: 1}, {0: 0xfe, 15: 2}}, reads: 2, writes: 1,
		pairs: []end{{1, 2}, {3, 4}, {5, 6}, {7, 8}}}
}

func sampleAnswer() answer {
	return answer{nonce: [16]byte{9}, start: 77, at: portAddr{mtu: 3, reads: 4, lid: 5}, chosen: 1, gid: [16]byte{8}, pairs: []end{{1, 2}, {3, 4}},
		buffers: []buffer{{id: 0, base: 1 << 40, len: 100, chunk: 64, keys: []uint32{11, 12}}, {id: 7, base: 1 << 41, len: 64, chunk: 64, keys: []uint32{13}}}}
}

func TestHellosComeBackAsTheyWere(t *testing.T) {
	o, err := decodeOffer(sampleOfferBytes())
	require.NoError(t, err)
	require.Equal(t, sampleOffer(), o)
	want := sampleAnswer()
	a, err := decodeAnswer(want.encode())
	require.NoError(t, err)
	require.Equal(t, want, a)
}

func sampleOfferBytes() []byte { o := sampleOffer(); return o.encode() }

// TestHellosThatLieAreRefused: each of these would end in an index or an address out of bounds.
func TestHellosThatLieAreRefused(t *testing.T) {
	for name, change := range map[string]func(*answer){
		"a key too few":         func(a *answer) { a.buffers[0].keys = a.buffers[0].keys[:1] },
		"a key too many":        func(a *answer) { a.buffers[1].keys = append(a.buffers[1].keys, 1) },
		"no chunk":              func(a *answer) { a.buffers[0].chunk = 0 },
		"past the last address": func(a *answer) { a.buffers[0].base = ^uint64(0) - 10 },
		"one buffer twice":      func(a *answer) { a.buffers[1].id = 0 },
		"too many pairs":        func(a *answer) { a.pairs = make([]end, 2+2*maxPairs) },
	} {
		a := sampleAnswer()
		change(&a)
		_, err := decodeAnswer(a.encode())
		require.ErrorIs(t, err, domain.ErrInvalid, name)
	}
	for name, change := range map[string]func(*offer){
		"no GID":         func(o *offer) { o.gids = nil },
		"too many GIDs":  func(o *offer) { o.gids = make([][16]byte, maxGIDs+1) },
		"no reads":       func(o *offer) { o.reads, o.writes = 0, 3 },
		"no writes":      func(o *offer) { o.reads, o.writes = 3, 0 },
		"too many reads": func(o *offer) { o.reads = maxPairs + 1 },
		"a pair too few": func(o *offer) { o.pairs = o.pairs[:3] },
	} {
		o := sampleOffer()
		change(&o)
		_, err := decodeOffer(o.encode())
		require.ErrorIs(t, err, domain.ErrInvalid, name)
	}
	later := sampleOfferBytes()
	later[0]++
	_, err := decodeOffer(later)
	require.ErrorContains(t, err, "version 2")
}

func FuzzOffer(f *testing.F) {
	f.Add(sampleOfferBytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := decodeOffer(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		require.Equal(t, b, o.encode())
	})
}

func FuzzAnswer(f *testing.F) {
	a := sampleAnswer()
	f.Add(a.encode())
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAnswer(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		require.Equal(t, b, a.encode())
		for i := range a.buffers {
			if x := &a.buffers[i]; x.len > 0 { // what is looked up later must be there
				_, until := x.at(x.len - 1)
				require.Equal(t, x.len, until)
			}
		}
	})
}

func sampleMessages() []message {
	return []message{{kind: kindPing, seq: 1, start: 2}, {kind: kindBye, seq: 3}, {kind: kindFenced},
		{kind: kindRevive, seq: 4, pair: 2, end: end{5, 6}, refused: true},
		{kind: kindOpen, seq: 7, token: ports.GrantToken{1, 63: 2}, from: 8, total: 10, runs: []run{{1, 2, 3, 4}, {5, 6, 7, 8}}}}
}

func FuzzMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		f.Add(m.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		if len(b) <= messageBytes {
			require.Equal(t, b, m.append(nil))
		}
	})
}

func TestMessagesFitTheirRoom(t *testing.T) {
	m := message{kind: kindOpen, runs: make([]run, 1000)}
	b := m.append(nil)
	require.LessOrEqual(t, len(b), messageBytes)
	back, err := decodeMessage(b)
	require.NoError(t, err)
	require.Len(t, back.runs, maxRuns)
	require.Greater(t, len(b)+runBytes, messageBytes, "one more fits")
}

func TestBuffersNameTheKeyOfEachChunk(t *testing.T) {
	b := buffer{len: 150, chunk: 64, keys: []uint32{1, 2, 3}}
	for _, tt := range []struct {
		off   uint64
		key   uint32
		until uint64
	}{{0, 1, 64}, {63, 1, 64}, {64, 2, 128}, {128, 3, 150}, {149, 3, 150}} {
		key, until := b.at(tt.off)
		require.Equal(t, tt.key, key, "offset %d", tt.off)
		require.Equal(t, tt.until, until, "offset %d", tt.off)
	}
}

// TestGrantsCoverTheirPagesAndNoByteMore has every byte of two small buffers looked up, against a dumb table.
func TestGrantsCoverTheirPagesAndNoByteMore(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const size = 256
		pageSize := rapid.Uint64Range(1, 40).Draw(r, "page size")
		chunk := rapid.Uint64Range(1, 300).Draw(r, "chunk")
		keyAt := func(b uint32, off uint64) (uint32, uint64) {
			return b<<16 | uint32(off/chunk), min(size, (off/chunk+1)*chunk)
		}
		var pages []domain.PageRef
		var granted [2][size]bool
		for range rapid.IntRange(0, 12).Draw(r, "pages") {
			p := domain.PageRef{Buffer: rapid.Uint32Range(0, 1).Draw(r, "buffer"), Page: uint32(rapid.Uint64Range(0, size/pageSize-1).Draw(r, "page"))}
			pages = append(pages, p)
			for i := range pageSize {
				granted[p.Buffer][uint64(p.Page)*pageSize+i] = true
			}
		}
		runs := runsOf(pageSize, pages, keyAt)
		for b := range uint32(2) {
			for off := range uint64(size) {
				key, until, ok := keyIn(runs, b, off)
				require.Equal(t, granted[b][off], ok, "byte %d of buffer %d", off, b)
				if ok {
					want, end := keyAt(b, off)
					require.Equal(t, want, key)
					require.LessOrEqual(t, until, end)
					require.True(t, covers(runs, b, off, until-off))
				}
			}
		}
		lo := rapid.Uint64Range(0, size-1).Draw(r, "lo")
		n := rapid.Uint64Range(0, size-lo).Draw(r, "n")
		all := true
		for i := lo; i < lo+n; i++ {
			all = all && granted[0][i]
		}
		require.Equal(t, all, covers(runs, 0, lo, n))
	})
}

func TestGrantsAreForTheirWriterUntilTheyAreRevoked(t *testing.T) {
	w := ports.Peer{ID: "w", Incarnation: 1}
	g, other := newGrant(5, w, nil), newGrant(5, w, nil)
	require.EqualValues(t, 5, grantIn(&g.token))
	require.True(t, g.isFor(&g.token, w))
	require.False(t, g.isFor(&other.token, w), "tokens are random")
	require.False(t, g.isFor(&g.token, ports.Peer{ID: "w", Incarnation: 2}))
	g.revoked = true
	require.False(t, g.isFor(&g.token, w))
}

func TestConfigIsCheckedAndLoweredToTheDevice(t *testing.T) {
	good := Config{Clock: still{}}.withDefaults()
	require.NoError(t, good.check())
	for name, change := range map[string]func(*Config){
		"clock":      func(c *Config) { c.Clock = nil },
		"retry 7":    func(c *Config) { c.Retry = 7 },
		"depth":      func(c *Config) { c.SendDepth = 1 },
		"pairs":      func(c *Config) { c.ReadPairs = maxPairs + 1 },
		"GID":        func(c *Config) { c.GID = "ipv5" },
		"chunk":      func(c *Config) { c.ChunkBytes = 1000 },
		"request":    func(c *Config) { c.MaxRequest = 1 },
		"keepalive":  func(c *Config) { c.Keepalive = -time.Second },
		"reads":      func(c *Config) { c.MaxReads = maxReads + 1 },
		"writepairs": func(c *Config) { c.WritePairs = -1 },
	} {
		c := good
		change(&c)
		require.ErrorIs(t, c.check(), domain.ErrInvalid, name)
	}
	require.ErrorContains(t, Config{Clock: still{}, IdleTimeout: -time.Second}.withDefaults().check(), "idle timeout: -1s, want 0")
	c := good
	require.Empty(t, c.clamp(Caps{MaxMRBytes: 1 << 50, MaxMsg: 1 << 30, MaxQPWR: 1 << 15, MaxSGE: 32, MaxCQE: 1 << 20, MaxReadsAsTarget: 16, MaxReadsAsInitiator: 128}))
	c.SendDepth = 8192 // what a field report had refused with EINVAL
	clamps := c.clamp(Caps{MaxMRBytes: 1<<20 + 7, MaxMsg: 1 << 16, MaxQPWR: 1024, MaxSGE: 4, MaxCQE: 1024, MaxReadsAsTarget: 2, MaxReadsAsInitiator: 4})
	require.Len(t, clamps, 7)
	require.Equal(t, Clamp{"work requests of a queue pair", 8192, 1024}, clamps[0])
	require.Equal(t, (1024-controlRecv-controlSend)/3, c.SendDepth, "all queue pairs' completions must have room at once")
	require.Equal(t, 4, c.MaxSGE)
	require.Equal(t, 2, c.MaxReads)
	require.EqualValues(t, 1<<20, c.ChunkBytes)
	require.EqualValues(t, 1<<16, c.MaxRequest)
}

type still struct{}

func (still) Now() domain.Instant { return 1 }

// TestStatusesAreNamedWithTheirCause: what was not the op's own fault is a reset, so that it may be done again.
func TestStatusesAreNamedWithTheirCause(t *testing.T) {
	for s := range Status(numStatuses + 3) {
		if s == 0 {
			continue
		}
		require.NotEmpty(t, s.String(), "status %d", uint32(s))
		require.Contains(t, s.Error(), fmt.Sprint(uint32(s)))
	}
	for s, class := range map[Status]error{StatusFlushed: ports.ErrReset, StatusRetryExc: ports.ErrReset, StatusRNRRetryExc: ports.ErrReset, StatusRemAccess: ports.ErrPeer} {
		require.ErrorIs(t, fail("op", "p", s), class)
		require.Equal(t, class == ports.ErrReset, s.blameless())
	}
	require.False(t, errors.Is(Status(4), ports.ErrReset), "memory that is not registered is no fault of the link")
	text := fail("op", "node-b", StatusRetryExc).Error()
	require.True(t, strings.Contains(text, `"node-b"`) && strings.Contains(text, "link down"), text)
	require.Contains(t, Status(99).Error(), "unknown status")
	for e := range NumEvents {
		require.False(t, bytes.ContainsAny([]byte(e.String()), " -"), "%s is a label", e)
	}
}
