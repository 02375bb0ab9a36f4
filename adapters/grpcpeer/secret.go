package grpcpeer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/spanpool/spanpool/domain"
	"github.com/spanpool/spanpool/ports"
	peerv1 "github.com/spanpool/spanpool/proto/spanpool/peer/v1"
)

// The proof of the secret, as peer.proto has it. Both ends run it as a handshake of the connection, before HTTP/2, so that what was
// proven is a fact about the connection and nothing has to be carried in calls.

const (
	preamble  = "spanpool" // as long as it takes to tell it from HTTP/2's "PRI * HT"
	maxFrame  = 4096
	nonceSize = 32
	ownerRole = "spanpool.peer.v1 owner"
	askerRole = "spanpool.peer.v1 asker"
)

// transcript is what both ends have said when the proofs are made.
type transcript struct{ asker, owner *peerv1.Greeting }

// mac is a role's proof. Every part is preceded by its length, so that no two transcripts read the same.
func (t transcript) mac(secret []byte, role string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(role))
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	for _, g := range []*peerv1.Greeting{t.asker, t.owner} {
		part(g.GetNonce())
		part([]byte(g.GetFrom().GetId()))
		part(binary.BigEndian.AppendUint64(nil, g.GetFrom().GetIncarnation()))
		if g == t.asker {
			part([]byte(g.GetToId()))
		}
	}
	return h.Sum(nil)
}

func (t transcript) proves(secret []byte, role string, mac []byte) bool {
	return hmac.Equal(t.mac(secret, role), mac)
}

func greeting(self ports.Peer, to ports.PeerID) *peerv1.Greeting {
	g := &peerv1.Greeting{Nonce: make([]byte, nonceSize), From: startOut(self), ToId: string(to)}
	_, _ = rand.Read(g.Nonce) // never fails: it ends the process instead
	return g
}

func checkGreeting(g *peerv1.Greeting) error {
	if err := CheckID(startIn(g.GetFrom()).ID); err != nil {
		return err
	}
	if g.GetFrom().GetIncarnation() == 0 || len(g.GetNonce()) != nonceSize {
		return fmt.Errorf("greeting of incarnation %d, nonce of %d bytes: %w", g.GetFrom().GetIncarnation(), len(g.GetNonce()), domain.ErrInvalid)
	}
	return nil
}

func writeFrame(w io.Writer, m proto.Message) error {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 2, 256), m)
	if err != nil {
		return err
	}
	if len(b)-2 > maxFrame {
		return &domain.LimitError{What: "bytes of a frame", Value: uint64(len(b) - 2), Limit: maxFrame}
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	_, err = w.Write(b)
	return err
}

// readFrame reads not a byte more than the frame has: HTTP/2 follows.
func readFrame(r io.Reader, m proto.Message) error {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > maxFrame {
		return &domain.LimitError{What: "bytes of a frame", Value: uint64(n), Limit: maxFrame}
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// prove is the asker's side. An error wraps ErrSecret when the owner refused or did not prove the secret itself.
func prove(conn io.ReadWriter, secret []byte, self ports.Peer, to ports.PeerID) error {
	t := transcript{asker: greeting(self, to), owner: &peerv1.Greeting{}}
	if _, err := io.WriteString(conn, preamble); err != nil {
		return err
	}
	if err := writeFrame(conn, t.asker); err != nil {
		return err
	}
	answer := &peerv1.Challenge{}
	if err := readFrame(conn, answer); err != nil {
		return fmt.Errorf("%w: no challenge: %w", ErrSecret, err)
	}
	if answer.GetReason() != "" {
		return fmt.Errorf("%w: refused: %s", ErrSecret, printable(answer.GetReason()))
	}
	t.owner = answer.GetGreeting()
	if err := checkGreeting(t.owner); err != nil {
		return fmt.Errorf("%w: %w", ErrSecret, err)
	}
	if got := startIn(t.owner.GetFrom()).ID; got != to {
		return fmt.Errorf("%w: %q answers there", ErrSecret, got)
	}
	if err := writeFrame(conn, &peerv1.Proof{Mac: t.mac(secret, askerRole)}); err != nil {
		return err
	}
	verdict := &peerv1.Verdict{}
	if err := readFrame(conn, verdict); err != nil {
		return fmt.Errorf("%w: no verdict: %w", ErrSecret, err)
	}
	if verdict.GetReason() != "" {
		return fmt.Errorf("%w: refused: %s", ErrSecret, printable(verdict.GetReason()))
	}
	if !t.proves(secret, ownerRole, verdict.GetMac()) {
		return fmt.Errorf("%w: the peer's proof does not hold", ErrSecret)
	}
	return nil
}

// verify is the owner's side, after the preamble. It returns who has proven the secret. The asker proves first: whoever calls
// learns nothing that a guess could be tried against.
func verify(conn io.ReadWriter, secret []byte, self ports.Peer) (ports.Peer, error) {
	t := transcript{asker: &peerv1.Greeting{}, owner: greeting(self, "")}
	if err := readFrame(conn, t.asker); err != nil {
		return ports.Peer{}, err
	}
	from := startIn(t.asker.GetFrom())
	if reason := refuseGreeting(t.asker, secret, self); reason != "" {
		_ = writeFrame(conn, &peerv1.Challenge{Reason: reason}) // it is refused, told or not
		return from, fmt.Errorf("%w: %q: %s", ErrSecret, from.ID, reason)
	}
	if err := writeFrame(conn, &peerv1.Challenge{Greeting: t.owner}); err != nil {
		return from, err
	}
	proof := &peerv1.Proof{}
	if err := readFrame(conn, proof); err != nil {
		return from, err
	}
	if !t.proves(secret, askerRole, proof.GetMac()) {
		const reason = "another secret"
		_ = writeFrame(conn, &peerv1.Verdict{Reason: reason})
		return from, fmt.Errorf("%w: %q: %s", ErrSecret, from.ID, reason)
	}
	return from, writeFrame(conn, &peerv1.Verdict{Mac: t.mac(secret, ownerRole)})
}

func refuseGreeting(g *peerv1.Greeting, secret []byte, self ports.Peer) string {
	err := checkGreeting(g)
	switch {
	case err != nil:
		return err.Error()
	case len(secret) == 0:
		return "this node has no shared secret"
	case ports.PeerID(g.GetToId()) != self.ID:
		return fmt.Sprintf("this is %q, not %q", self.ID, g.GetToId())
	}
	return ""
}

// proven is what is known about a connection. Its zero value is one whose other end has proven nothing.
type proven struct {
	credentials.CommonAuthInfo
	from ports.Peer
}

// AuthType names the way in which the other end is known.
func (proven) AuthType() string { return "spanpool-secret" }

// askerCreds is the handshake of a Client's connections to one peer. Without a secret it is none.
type askerCreds struct {
	self   ports.Peer
	to     ports.PeerID
	secret []byte
	dials  *dials // is told how it ended
}

// ClientHandshake proves the secret. gRPC closes the connection when the time for it is over.
func (a *askerCreds) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if len(a.secret) == 0 {
		a.dials.ended(nil)
		return &fresh{Conn: conn, dials: a.dials}, proven{}, nil
	}
	err := prove(conn, a.secret, a.self, a.to)
	a.dials.ended(err)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return &fresh{Conn: conn, dials: a.dials}, proven{from: ports.Peer{ID: a.to}}, nil
}

// ServerHandshake is not an asker's.
func (*askerCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info names the protocol.
func (*askerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "spanpool-secret"}
}

// Clone returns the same: the last failure is the peer's, whoever dials it.
func (a *askerCreds) Clone() credentials.TransportCredentials { return a }

// OverrideServerName does nothing: there are no names of servers here.
func (*askerCreds) OverrideServerName(string) error { return nil }

// errCrowded ends a connection that is one too many.
var errCrowded = errors.New("too many connections that have proven nothing")

// ownerCreds is the handshake of a Server's connections. gRPC bounds its time.
type ownerCreds struct {
	self    ports.Peer
	secret  []byte
	refused *atomic.Uint64
}

// ServerHandshake takes a proof from who begins with one, and lets others through as who has proven nothing.
func (o *ownerCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begin := make([]byte, len(preamble))
	if _, err := io.ReadFull(conn, begin); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	if string(begin) != preamble {
		if c, ok := conn.(*counted); ok && len(o.secret) > 0 && !c.stayAsStranger() {
			_ = conn.Close()
			return nil, nil, errCrowded
		}
		return &begun{Conn: conn, begin: begin}, proven{}, nil
	}
	from, err := verify(conn, o.secret, o.self)
	if err != nil {
		if errors.Is(err, ErrSecret) {
			o.refused.Add(1)
		}
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, proven{from: from}, nil
}

// ClientHandshake is not an owner's.
func (*ownerCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info names the protocol.
func (*ownerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "spanpool-secret"}
}

// Clone returns the same: it is constant.
func (o *ownerCreds) Clone() credentials.TransportCredentials { return o }

// OverrideServerName does nothing.
func (*ownerCreds) OverrideServerName(string) error { return nil }

// begun is a connection whose first bytes were read already.
type begun struct {
	net.Conn
	begin []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.begin) > 0 {
		n := copy(p, b.begin)
		b.begin = b.begin[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}
