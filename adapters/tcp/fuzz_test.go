//go:build linux

package tcp

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	"github.com/spanpool/spanpool/ports/porttest/content"
)

func FuzzOffer(f *testing.F) {
	f.Add(offer{features: 3, nonce: nonce{1}}.encode())
	f.Add([]byte{})
	f.Add(append([]byte{2}, make([]byte, offerBytes+5)...)) // of a later version
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := decodeOffer(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		require.Equal(t, b[1:offerBytes], o.encode()[1:])
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(answer{features: 1, start: 2, link: 3, key: [32]byte{4}, conns: 5, addresses: []string{"127.0.0.1:1", "[::1]:2"}}.encode())
	f.Add([]byte{})
	f.Add(make([]byte, answerBytes+3))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAnswer(b)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrInvalid)
			return
		}
		require.Equal(t, b, a.encode())
	})
}

func FuzzLaneHello(f *testing.F) {
	f.Add(laneHello{index: 1, conns: 2, start: 3, link: 4, nonce: nonce{5}}.encode())
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeLaneHello(b)
		if err != nil {
			require.ErrorIs(t, err, errGarbage)
			return
		}
		require.Equal(t, b, h.encode())
	})
}

func FuzzRequest(f *testing.F) {
	f.Add(frameOf(request{kind: kindRead, id: 3}, nil, []segment{{1, 2, 3}}))
	f.Add(make([]byte, requestBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < requestBytes {
			return
		}
		r, err := decodeRequest(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, r.size(), maxFrame)
		require.LessOrEqual(t, r.bytes, uint32(maxRequestBytes))
		var again [requestBytes]byte
		r.encode(again[:])
		require.Equal(t, b[:requestBytes], again[:])
		if len(b) >= r.size() {
			_ = checkSegments(r, b[r.size()-r.count*segmentBytes:r.size()])
		}
	})
}

func FuzzResponse(f *testing.F) {
	var b [responseBytes]byte
	response{kind: kindRead, id: 3, bytes: 9}.encode(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < responseBytes {
			return
		}
		r, err := decodeResponse(b)
		if err != nil {
			return
		}
		require.NotPanics(t, func() { _ = r.status.err() })
		var again [responseBytes]byte
		r.encode(again[:])
		require.Equal(t, b[:responseBytes], again[:])
	})
}

// FuzzServe sends bytes into an owner's connection, from a writer with a grant of the last page: nothing lands elsewhere.
func FuzzServe(f *testing.F) {
	owner, mem := exposing(f, Config{})
	_, token := grantPage(f, owner, stranger, 63)
	f.Add(frameOf(request{kind: kindRead}, nil, []segment{{len: 8}, {off: 9, len: 100}}))
	f.Add(frameOf(request{kind: kindWrite}, token[:], []segment{{off: 63 * testPage, len: 3}}, 1, 2, 3))
	f.Add(frameOf(request{kind: kindWrite}, token[:], []segment{{off: 62 * testPage, len: 3}}, 1, 2, 3))
	f.Add(frameOf(request{kind: kindWrite}, token[:], []segment{{off: 63*testPage - 1, len: 3}}, 1, 2, 3))
	f.Add(frameOf(request{kind: kindRead}, nil, []segment{{off: ^uint64(0), len: 8}}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	in := &inbound{from: stranger, write: true}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, o := socketPair(t)
		defer c.Close()
		s, err := newServed(owner.tcp(), o)
		require.NoError(t, err)
		s.in = in
		_ = c.SetDeadline(time.Now().Add(patience))
		go func() {
			_, _ = c.Write(b)
			_ = c.CloseWrite()
		}()
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = io.Copy(io.Discard, c)
		}()
		_ = s.run()
		s.sock.close()
		<-over
		require.Equal(t, -1, content.Check(mem.Bytes()[:63*testPage], 0, 0))
	})
}

// FuzzResponses sends bytes to an asker that waits for reads: every op completes, and memory beyond theirs is not touched.
func FuzzResponses(f *testing.F) {
	asker := listen(f, "asker", Config{})
	good := make([]byte, responseBytes)
	response{kind: kindRead, bytes: 100}.encode(good)
	f.Add(append(append([]byte(nil), good...), make([]byte, 300)...))
	f.Add([]byte{})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, o := socketPair(t)
		defer o.Close()
		s, err := newSocket(c)
		require.NoError(t, err)
		l := newLink(asker.tcp(), "owner", []*socket{s})
		require.True(t, asker.tcp().keep(l))
		l.begin()
		mem, q := heap(t, 3000), ports.NewCompletions()
		content.Poison(mem.Bytes())
		require.NoError(t, l.Submit(&ports.Batch{
			Ops:      []ports.Op{{Tag: 0, Count: 1}, {Tag: 1, First: 1, Count: 1}},
			Segments: []ports.Segment{{Local: mem, LocalOff: 1000, Len: 100}, {Local: mem, LocalOff: 1100, Len: 900}}}, q))
		takeRequest(o)
		_, _ = o.Write(b)
		_ = o.CloseWrite()
		take(t, q, 2)
		require.NoError(t, l.Close())
		require.Equal(t, -1, content.CheckPoison(mem.Bytes()[:1000]))
		require.Equal(t, -1, content.CheckPoison(mem.Bytes()[2000:]))
	})
}
