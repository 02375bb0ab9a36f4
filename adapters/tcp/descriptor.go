package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

// version of offers, answers and frames. A release answers an offer of a later one with its own.
const version = 1

// features are bits that both ends must know of to use; unknown ones are ignored.
type features uint32

const (
	featureWrite features = 1 << iota
	ourFeatures           = featureWrite
)

type nonce [16]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails: crypto/rand ends the program instead
	return n
}

// offer is what the asker's hello carries. Nothing in it is secret; its nonce makes the answer good for this offer only.
type offer struct {
	features features
	nonce    nonce
}

const offerBytes = 1 + 4 + 16

func (o offer) encode() []byte {
	b := make([]byte, 0, offerBytes)
	b = append(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(o.features))
	return append(b, o.nonce[:]...)
}

// decodeOffer takes what later versions append as not there.
func decodeOffer(b []byte) (o offer, err error) {
	if len(b) < offerBytes || b[0] == 0 || (b[0] == version && len(b) != offerBytes) {
		return o, fmt.Errorf("offer of %d bytes, want %d and version %d: %w", len(b), offerBytes, version, domain.ErrInvalid)
	}
	o.features = features(binary.LittleEndian.Uint32(b[1:]))
	copy(o.nonce[:], b[5:])
	return o, nil
}

// answer is what the owner's reply carries: where to connect, which start of the owner's transport this is, and the key of one
// link into it. start and key are random, so nothing of them means anything to another start.
type answer struct {
	features  features
	start     uint64
	link      uint64
	key       [32]byte
	conns     uint8 // the most that this link may have
	addresses []string
}

const answerBytes = 1 + 4 + 8 + 8 + 32 + 1 + 1 // and the addresses

func (a answer) encode() []byte {
	b := make([]byte, 0, answerBytes+len(a.addresses)*32)
	b = append(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.features))
	b = binary.LittleEndian.AppendUint64(b, a.start)
	b = binary.LittleEndian.AppendUint64(b, a.link)
	b = append(b, a.key[:]...)
	b = append(b, a.conns, uint8(len(a.addresses)))
	for _, s := range a.addresses {
		b = append(b, uint8(len(s)))
		b = append(b, s...)
	}
	return b
}

func decodeAnswer(b []byte) (a answer, err error) {
	if len(b) < answerBytes || b[0] != version {
		return a, fmt.Errorf("answer of %d bytes, want %d or more and version %d: %w", len(b), answerBytes, version, domain.ErrInvalid)
	}
	a.features = features(binary.LittleEndian.Uint32(b[1:]))
	a.start = binary.LittleEndian.Uint64(b[5:])
	a.link = binary.LittleEndian.Uint64(b[13:])
	copy(a.key[:], b[21:])
	a.conns = b[53]
	count := int(b[54])
	if count == 0 || count > maxAddresses {
		return a, fmt.Errorf("answer with %d addresses, want 1 to %d: %w", count, maxAddresses, domain.ErrInvalid)
	}
	if a.conns == 0 || a.conns > maxConns {
		return a, fmt.Errorf("answer for %d connections, want 1 to %d: %w", a.conns, maxConns, domain.ErrInvalid)
	}
	b = b[answerBytes:]
	for range count {
		if len(b) == 0 || int(b[0]) > len(b)-1 || b[0] == 0 {
			return a, fmt.Errorf("answer that ends in an address: %w", domain.ErrInvalid)
		}
		a.addresses = append(a.addresses, string(b[1:1+b[0]]))
		b = b[1+b[0]:]
	}
	if len(b) != 0 {
		return a, fmt.Errorf("answer with %d bytes too many: %w", len(b), domain.ErrInvalid)
	}
	return a, nil
}

func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
