package client

import (
	"context"
	"errors"
	"io"

	enginev1 "github.com/spanpool/spanpool/proto/spanpool/engine/v1"
)

// Position is how far a reader of events has come: the Boot and Sequence of the last message that it took in. The zero value is nowhere.
type Position struct{ Boot, Sequence uint64 }

// Events tells which objects come to the node and go, from a position on, until ctx ends or tell returns an error; then it returns that
// error. A message with Resync says: forget this node, what is here follows, up to the message with SnapshotEnd. After an error of the
// connection call it again with the position of the last message.
func (n *Node) Events(ctx context.Context, from Position, namespace *string, tell func(*enginev1.EventsReply) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &enginev1.EventsRequest{Boot: from.Boot, Sequence: from.Sequence}
	if namespace != nil {
		req.Namespace = []byte(*namespace)
	}
	stream, err := n.rpc.Events(ctx, req)
	if err != nil {
		return n.failed("events", err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return n.failed("events", err)
		}
		if err := tell(m); err != nil {
			return err
		}
	}
}
