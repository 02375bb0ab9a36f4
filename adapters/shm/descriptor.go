package shm

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/spanpool/spanpool/domain"
)

// version of offers, answers and messages. A release answers an offer of a later one with its own.
const version = 1

// host is where a process can be reached by its sockets' names: one boot of one kernel, and a network namespace of it.
type host struct {
	boot [16]byte
	net  uint64
}

// offer is what the asker's hello carries. Nothing in it is secret; its nonce makes the answer good for this offer only.
type offer struct {
	host  host
	nonce [16]byte
}

const offerBytes = 1 + 16 + 8 + 16

func (o offer) encode() []byte {
	b := make([]byte, 0, offerBytes)
	b = append(b, version)
	b = append(b, o.host.boot[:]...)
	b = binary.LittleEndian.AppendUint64(b, o.host.net)
	return append(b, o.nonce[:]...)
}

// decodeOffer takes what later versions append as not there.
func decodeOffer(b []byte) (o offer, err error) {
	if len(b) < offerBytes || b[0] == 0 || (b[0] == version && len(b) != offerBytes) {
		return o, fmt.Errorf("offer of %d bytes, want %d and version %d: %w", len(b), offerBytes, version, domain.ErrInvalid)
	}
	copy(o.host.boot[:], b[1:])
	o.host.net = binary.LittleEndian.Uint64(b[17:])
	copy(o.nonce[:], b[25:])
	return o, nil
}

// answer is what the owner's reply carries: the name of its socket, which is drawn at each start, and the key of one link.
type answer struct {
	link uint64
	key  [32]byte
	name string
}

const (
	answerBytes = 1 + 8 + 32 + 1 // and the name
	maxName     = 100            // of a socket's 107 bytes
)

func (a answer) encode() []byte {
	b := make([]byte, 0, answerBytes+len(a.name))
	b = append(b, version)
	b = binary.LittleEndian.AppendUint64(b, a.link)
	b = append(b, a.key[:]...)
	b = append(b, uint8(len(a.name)))
	return append(b, a.name...)
}

func decodeAnswer(b []byte) (a answer, err error) {
	if len(b) < answerBytes || b[0] != version {
		return a, fmt.Errorf("answer of %d bytes, want more than %d and version %d: %w", len(b), answerBytes, version, domain.ErrInvalid)
	}
	a.link = binary.LittleEndian.Uint64(b[1:])
	copy(a.key[:], b[9:])
	if n := int(b[41]); n == 0 || n > maxName || n != len(b)-answerBytes {
		return a, fmt.Errorf("answer of %d bytes with a name of %d, want 1 to %d and nothing behind: %w", len(b), n, maxName, domain.ErrInvalid)
	}
	a.name = string(b[answerBytes:])
	return a, nil
}

// The two ends of a connection, for their proofs.
const (
	asking = "asker"
	owning = "owner"
)

type proof [sha256.Size]byte

// proofOf is what an end shows to have been at the hello: it knows the key, the offer and the secret.
func proofOf(end string, secret []byte, o offer, a answer) (p proof) {
	m := hmac.New(sha256.New, append(a.key[:], secret...))
	m.Write([]byte(end))
	m.Write(o.encode())
	m.Write(a.encode())
	m.Sum(p[:0])
	return p
}

func (p proof) is(b []byte) bool { return hmac.Equal(p[:], b) }

// Messages are packets, little-endian, one after the other:
//
//	hello   0 version  1 link u64  9 proof      from the asker
//	welcome 0 version  1 proof  33 count u32    from the owner: so many buffers follow
//	refusal 0 version                           or that: no such link, or a wrong proof
//	buffer  0 number u32  4 off u64  12 len u64   with the descriptor of its file
const (
	helloBytes   = 1 + 8 + sha256.Size
	welcomeBytes = 1 + sha256.Size + 4
	bufferBytes  = 4 + 8 + 8

	maxBuffers = 4096 // of a medium, numbered from 0; the number is arbitrary
)

func encodeHello(link uint64, p proof) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{version}, link)
	return append(b, p[:]...)
}

func decodeHello(b []byte) (link uint64, shown []byte, err error) {
	if len(b) != helloBytes || b[0] != version {
		return 0, nil, fmt.Errorf("hello of %d bytes, want %d and version %d: %w", len(b), helloBytes, version, domain.ErrInvalid)
	}
	return binary.LittleEndian.Uint64(b[1:]), b[9:], nil
}

func encodeWelcome(p proof, buffers int) []byte {
	return binary.LittleEndian.AppendUint32(append([]byte{version}, p[:]...), uint32(buffers))
}

func decodeWelcome(b []byte) (shown []byte, buffers int, err error) {
	if len(b) != welcomeBytes || b[0] != version {
		return nil, 0, fmt.Errorf("welcome of %d bytes, want %d and version %d: %w", len(b), welcomeBytes, version, domain.ErrInvalid)
	}
	n := binary.LittleEndian.Uint32(b[1+sha256.Size:])
	if n > maxBuffers {
		return nil, 0, &domain.LimitError{What: "buffers of a peer", Value: uint64(n), Limit: maxBuffers}
	}
	return b[1 : 1+sha256.Size], int(n), nil
}

// buffer names a run of a file.
type buffer struct {
	number   uint32
	off, len uint64
}

func (f buffer) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, bufferBytes), f.number)
	b = binary.LittleEndian.AppendUint64(b, f.off)
	return binary.LittleEndian.AppendUint64(b, f.len)
}

func decodeBuffer(b []byte) (f buffer, err error) {
	if len(b) != bufferBytes {
		return f, fmt.Errorf("buffer's message of %d bytes, want %d: %w", len(b), bufferBytes, domain.ErrInvalid)
	}
	f = buffer{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[4:]), binary.LittleEndian.Uint64(b[12:])}
	if f.number >= maxBuffers {
		return f, &domain.LimitError{What: "number of a buffer", Value: uint64(f.number), Limit: maxBuffers - 1}
	}
	return f, nil
}

func fill(b []byte) { _, _ = rand.Read(b) } // never fails: crypto/rand ends the program instead
