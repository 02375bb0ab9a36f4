package tcp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spanpool/spanpool/ports"
)

// A lane begins with four messages of fixed length. Both ends prove that they know the link's key; it is never sent.
//
//	hello      "SPTC"  4 version  5 index  6 conns  7 zero  8 start u64  16 link u64  24 nonce [16]     asker
//	challenge  0 verdict  1 version  2 zero [6]  8 nonce [16]                                           owner
//	proof      HMAC-SHA256 [32]                                                                         asker
//	welcome    0 verdict  1 zero [7]  8 HMAC-SHA256 [32]                                                owner
const (
	helloBytes     = 40
	challengeBytes = 24
	proofBytes     = sha256.Size
	welcomeBytes   = 8 + sha256.Size
	magic          = "SPTC"
)

type verdict uint8

const (
	accepted     verdict = iota
	unknownLink          // of another start, dropped, or linked before
	wrongVersion         // or a hello that makes no sense
	wrongProof
)

// err is what a verdict means to the asker.
func (v verdict) err() error {
	switch v {
	case accepted:
		return nil
	case unknownLink:
		return fmt.Errorf("the link is unknown there: %w", ports.ErrRestarted)
	case wrongProof:
		return fmt.Errorf("the proof is wrong (is the secret the same?): %w", ports.ErrPeer)
	}
	return fmt.Errorf("refused, reason %d: %w", v, ports.ErrPeer)
}

type laneHello struct {
	index, conns uint8
	start, link  uint64
	nonce        nonce
}

func (h laneHello) encode() []byte {
	b := make([]byte, 0, helloBytes)
	b = append(b, magic...)
	b = append(b, version, h.index, h.conns, 0)
	b = binary.LittleEndian.AppendUint64(b, h.start)
	b = binary.LittleEndian.AppendUint64(b, h.link)
	return append(b, h.nonce[:]...)
}

func decodeLaneHello(b []byte) (h laneHello, err error) {
	if len(b) != helloBytes || string(b[:4]) != magic || b[4] != version || b[7] != 0 {
		return h, errGarbage
	}
	h.index, h.conns = b[5], b[6]
	h.start, h.link = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	copy(h.nonce[:], b[24:])
	if h.conns == 0 || h.conns > maxConns || h.index >= h.conns {
		return h, errGarbage
	}
	return h, nil
}

// linkKey is what proofs of a link are made with: of the answer's key, the offer that it answers, and the secret.
type linkKey [sha256.Size]byte

func newLinkKey(secret []byte, o offer, a answer) (k linkKey) {
	m := hmac.New(sha256.New, secret)
	m.Write(a.key[:])
	m.Write(o.nonce[:])
	m.Write(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, a.start), a.link))
	m.Sum(k[:0])
	return k
}

// proof of one end of one lane.
func (k linkKey) proof(end string, h laneHello, theirs nonce) (p [proofBytes]byte) {
	m := hmac.New(sha256.New, k[:])
	m.Write([]byte(end))
	m.Write(h.encode())
	m.Write(theirs[:])
	m.Sum(p[:0])
	return p
}

// within gives a connection until the earlier of both for what follows, and ends it at once when ctx does. The function that it
// returns lifts that.
func within(ctx context.Context, c net.Conn, d time.Duration) (lift func()) {
	_ = c.SetDeadline(time.Now().Add(d))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() {
		if stop() {
			_ = c.SetDeadline(time.Time{})
		}
	}
}

// introduce is the asker's half.
func introduce(c net.Conn, k linkKey, h laneHello) error {
	if _, err := c.Write(h.encode()); err != nil {
		return fmt.Errorf("hello: %w: %w", ports.ErrPeer, err)
	}
	var b [welcomeBytes]byte
	if _, err := io.ReadFull(c, b[:challengeBytes]); err != nil {
		return fmt.Errorf("challenge: %w: %w", ports.ErrPeer, err)
	}
	if err := verdict(b[0]).err(); err != nil {
		return fmt.Errorf("challenge: %w", err)
	}
	if b[1] != version {
		return fmt.Errorf("challenge of version %d, want %d: %w", b[1], version, ports.ErrPeer)
	}
	var theirs nonce
	copy(theirs[:], b[8:])
	p := k.proof("asker", h, theirs)
	if _, err := c.Write(p[:]); err != nil {
		return fmt.Errorf("proof: %w: %w", ports.ErrPeer, err)
	}
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("welcome: %w: %w", ports.ErrPeer, err)
	}
	if err := verdict(b[0]).err(); err != nil {
		return fmt.Errorf("welcome: %w", err)
	}
	if want := k.proof("owner", h, theirs); !hmac.Equal(want[:], b[8:]) {
		return fmt.Errorf("welcome: the peer does not know the key: %w", ports.ErrPeer)
	}
	return nil
}

// receive is the owner's half. keyOf finds the key of what a hello names; admit takes the lane in, once the proof was right. An
// error is why nothing came of it; the asker has been told.
func receive(c net.Conn, keyOf func(laneHello) (linkKey, bool), admit func(laneHello) bool) error {
	var b [helloBytes]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return errTruncated
	}
	h, err := decodeLaneHello(b[:])
	if err != nil {
		return refuse(c, wrongVersion, challengeBytes, err)
	}
	k, ok := keyOf(h)
	if !ok {
		return refuse(c, unknownLink, challengeBytes, errUnknownLink)
	}
	mine := newNonce()
	challenge := append([]byte{byte(accepted), version, 0, 0, 0, 0, 0, 0}, mine[:]...)
	if _, err := c.Write(challenge); err != nil {
		return errGone
	}
	var p [proofBytes]byte
	if _, err := io.ReadFull(c, p[:]); err != nil {
		return errTruncated
	}
	if want := k.proof("asker", h, mine); !hmac.Equal(want[:], p[:]) {
		return refuse(c, wrongProof, welcomeBytes, errProof)
	}
	if !admit(h) {
		return refuse(c, unknownLink, welcomeBytes, errUnknownLink)
	}
	p = k.proof("owner", h, mine)
	if _, err := c.Write(append([]byte{byte(accepted), 0, 0, 0, 0, 0, 0, 0}, p[:]...)); err != nil {
		return errGone
	}
	return nil
}

// refuse tells the asker, in a message of the length that it waits for.
func refuse(c net.Conn, v verdict, length int, why error) error {
	b := make([]byte, length)
	b[0], b[1] = byte(v), version
	_, _ = c.Write(b) // it is refused whether it hears of it or not
	return why
}
