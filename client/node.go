package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Error classes. What a call returns wraps one of them where the caller can act on it.
var (
	ErrUnavailable = errors.New("node unavailable")         // nobody answers at the socket
	ErrNotFound    = errors.New("not found")                // the object, session or region is not there
	ErrRestarted   = errors.New("node was started anew")    // sessions and what they read or wrote are gone; begin again
	ErrRefused     = errors.New("refused by a limit")       // ask for less
	ErrInvalid     = errors.New("malformed")                // a bug of the caller's
	ErrNotQuiet    = errors.New("memory may still be used") // the node could not be asked: leave the call's memory alone
	ErrUnsupported = errors.ErrUnsupported
)

// chunk is the bytes of objects in a message; the protocol's bound.
const chunk = 1 << 20

// Source is which way the bytes of a hit came.
type Source = enginev1.Source

// SourceName is a source as metrics and ctl write it; "nowhere" when no bytes came.
func SourceName(s Source) string {
	if s == enginev1.Source_SOURCE_UNSPECIFIED {
		return "nowhere"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "SOURCE_"))
}

// Status is what became of one key. Only Hit, Stored and Exists are successes.
type Status = enginev1.KeyStatus

// The statuses that callers ask for most; the others are enginev1's.
const (
	Hit           = enginev1.KeyStatus_KEY_STATUS_HIT
	Stored        = enginev1.KeyStatus_KEY_STATUS_STORED
	Exists        = enginev1.KeyStatus_KEY_STATUS_EXISTS
	NotFound      = enginev1.KeyStatus_KEY_STATUS_NOT_FOUND
	Invalid       = enginev1.KeyStatus_KEY_STATUS_INVALID
	Busy          = enginev1.KeyStatus_KEY_STATUS_BUSY
	NotRegistered = enginev1.KeyStatus_KEY_STATUS_NOT_REGISTERED
	CopyFailed    = enginev1.KeyStatus_KEY_STATUS_COPY_FAILED
	Refused       = enginev1.KeyStatus_KEY_STATUS_REFUSED
)

// OK reports whether s is a success.
func OK(s Status) bool { return s == Hit || s == Stored || s == Exists }

// StatusName is a status as metrics and ctl write it: "not_found".
func StatusName(s Status) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "KEY_STATUS_"))
}

// Node is the calls that need no registered memory: bytes of objects cross the socket. Safe for parallel use.
type Node struct {
	conn   *grpc.ClientConn
	rpc    enginev1.EngineClient
	socket string
}

// OpenNode prepares to call the node at a Unix socket. It does not connect: the first call does.
func OpenNode(socket string) (*Node, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	// Not "unix:" and the path, which would be parsed as a URL.
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: .2, MaxDelay: time.Second}}))
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", socket, err)
	}
	return &Node{conn: conn, rpc: enginev1.NewEngineClient(conn), socket: socket}, nil
}

// Close ends the connection; calls in progress fail.
func (n *Node) Close() error { return n.conn.Close() }

// PutObject is what Put stores.
type PutObject struct {
	Namespace, Key string
	Size           uint64
	To             string // the id of another node; empty is this one
}

// Put stores Size bytes of r.
func (n *Node) Put(ctx context.Context, o PutObject, r io.Reader) (*enginev1.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that was not read to its end
	stream, err := n.rpc.Put(ctx)
	if err != nil {
		return nil, n.failed("put", err)
	}
	header := &enginev1.PutHeader{Namespace: []byte(o.Namespace), Key: []byte(o.Key), Size: o.Size, To: o.To}
	b := make([]byte, min(o.Size, chunk))
	for left, m := o.Size, (&enginev1.PutRequest{Header: header}); ; m = new(enginev1.PutRequest) {
		m.Data = b[:min(left, chunk)]
		if _, err := io.ReadFull(r, m.Data); err != nil {
			return nil, fmt.Errorf("put %q: %d bytes from the end: %w", o.Key, left, err)
		}
		left -= uint64(len(m.Data))
		if stream.Send(m) != nil || left == 0 { // the answer says why
			break
		}
	}
	reply, err := stream.CloseAndRecv()
	if err != nil {
		return nil, n.failed("put", err)
	}
	return reply.GetResult(), nil
}

// Range is a part of an object.
type Range struct{ Off, Len uint64 }

// Get writes an object, or ranges of it in the order in which they are given, to w. Without a hit nothing is written.
func (n *Node) Get(ctx context.Context, namespace, key string, ranges []Range, w io.Writer) (*enginev1.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &enginev1.GetRequest{Namespace: []byte(namespace), Key: []byte(key)}
	for _, r := range ranges {
		req.Ranges = append(req.Ranges, &enginev1.Range{Off: r.Off, Len: r.Len})
	}
	stream, err := n.rpc.Get(ctx, req)
	if err != nil {
		return nil, n.failed("get", err)
	}
	var result *enginev1.Result
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) && result != nil {
			return result, nil
		}
		if err != nil {
			return result, n.failed("get", err)
		}
		if result == nil {
			if result = m.GetResult(); result.GetStatus() != Hit {
				return result, nil
			}
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return result, err
		}
	}
}

// Exists says which keys are at the node or at a peer, and how many from the first on are there without a gap. What is found on the node
// stays for hold, within its bounds.
func (n *Node) Exists(ctx context.Context, namespace string, keys []string, hold time.Duration) (found []bool, leading int, err error) {
	reply, err := n.rpc.Exists(ctx, &enginev1.ExistsRequest{Namespace: []byte(namespace), Keys: bytesOf(keys), HoldNanos: uint64(max(hold, 0))})
	if err != nil {
		return nil, 0, n.failed("exists", err)
	}
	if len(reply.GetFound()) != len(keys) {
		return nil, 0, fmt.Errorf("exists: %d answers for %d keys", len(reply.GetFound()), len(keys))
	}
	return reply.GetFound(), int(reply.GetLeading()), nil
}

// Removal is the answer of Remove for one key.
type Removal struct {
	Found      bool
	Unanswered []string // nodes that may have a copy and did not answer
}

// Remove drops objects at the node and at every peer that answers.
func (n *Node) Remove(ctx context.Context, namespace string, keys []string) ([]Removal, error) {
	reply, err := n.rpc.Remove(ctx, &enginev1.RemoveRequest{Namespace: []byte(namespace), Keys: bytesOf(keys)})
	if err != nil {
		return nil, n.failed("remove", err)
	}
	if len(reply.GetRemovals()) != len(keys) {
		return nil, fmt.Errorf("remove: %d answers for %d keys", len(reply.GetRemovals()), len(keys))
	}
	out := make([]Removal, len(keys))
	for i, r := range reply.GetRemovals() {
		out[i] = Removal{r.GetFound(), r.GetUnanswered()}
	}
	return out, nil
}

// Size is the size of an object at the node or at a peer.
func (n *Node) Size(ctx context.Context, namespace, key string) (uint64, error) {
	reply, err := n.rpc.Size(ctx, &enginev1.SizeRequest{Namespace: []byte(namespace), Key: []byte(key)})
	if err != nil {
		return 0, n.failed("size", err)
	}
	return reply.GetSize(), nil
}

// Status is what the node is and what it counted.
func (n *Node) Status(ctx context.Context) (*enginev1.StatusReply, error) {
	reply, err := n.rpc.Status(ctx, &enginev1.StatusRequest{})
	if err != nil {
		return nil, n.failed("status", err)
	}
	return reply, nil
}

// Peers is how the node stands with others, in the order of their ids.
func (n *Node) Peers(ctx context.Context) ([]*enginev1.PeerState, error) {
	reply, err := n.rpc.Peers(ctx, &enginev1.PeersRequest{})
	if err != nil {
		return nil, n.failed("peers", err)
	}
	return reply.GetPeers(), nil
}

func bytesOf(keys []string) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = []byte(k)
	}
	return out
}

// failed names the call and the socket, and gives the error its class.
func (n *Node) failed(call string, err error) error {
	return &callError{call: call, socket: n.socket, status: status.Convert(err)}
}

// callError is an error of a call as a whole.
type callError struct {
	call, socket string
	status       *status.Status
	class        error // beside that of the status
}

func (e *callError) Error() string {
	text := fmt.Sprintf("%s: node at %q: %s: %s", e.call, e.socket, snake(e.status.Code().String()), e.status.Message())
	if e.class != nil {
		text += ": " + e.class.Error()
	}
	return text
}

// snake makes DeadlineExceeded a name as people see it elsewhere: deadline_exceeded.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// Unwrap gives the classes.
func (e *callError) Unwrap() []error {
	var out []error
	switch e.status.Code() {
	case codes.Unavailable:
		out = append(out, ErrUnavailable)
	case codes.NotFound:
		out = append(out, ErrNotFound)
	case codes.FailedPrecondition:
		out = append(out, ErrRestarted)
	case codes.ResourceExhausted:
		out = append(out, ErrRefused)
	case codes.InvalidArgument:
		out = append(out, ErrInvalid)
	case codes.Unimplemented:
		out = append(out, ErrUnsupported)
	case codes.Canceled:
		out = append(out, context.Canceled)
	case codes.DeadlineExceeded:
		out = append(out, context.DeadlineExceeded)
	}
	if e.class != nil {
		out = append(out, e.class)
	}
	return out
}
